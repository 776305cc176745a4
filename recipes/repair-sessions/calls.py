"""Lets models that call no tools by themselves call them: an OpenAI server before llama.cpp that reads their words.

The small models here write calls of tools in no form that llama.cpp knows, and think badly in JSON. So they are told in
words what to write, and it is read as a person would read it: a code block is a call of `write_program`, and words
alone are the end, or `run_tests` where a call is required. What asks for no tools is passed on as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

Json = dict[str, Any]
_TOLD = (
    "Say in one sentence which line is wrong and why. Then write the whole corrected program in one block between "
    "```python and ```, and stop there: its tests are run, and you see what came of it. When all tests have passed, "
    "say so in words alone."
)
_BLOCK = re.compile(r"```(?:python)?[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)


def read_call(text: str, *, required: bool) -> tuple[str, Json] | None:
    """Return the tool that the words call, with its arguments; None if they are the last ones."""
    if blocks := _BLOCK.findall(text):
        return "write_program", {"program": blocks[-1]}
    return ("run_tests", {}) if required else None


def plain_messages(messages: list[Json], *, tools: bool) -> list[Json]:
    """Return the conversation in words alone; if tools are asked for, told what to write."""
    plain: list[Json] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)  # fmt: skip
        plain.append({"role": "user" if message["role"] == "tool" else message["role"], "content": text})  # fmt: skip
    if tools:
        first = plain.pop(0)["content"] if plain[0]["role"] == "system" else ""
        plain.insert(0, {"role": "system", "content": f"{first}\n\n{_TOLD}".strip()})
    return plain


def with_call(answer: Json, number: int, *, required: bool) -> Json:
    """Return the answer with what its words call, or with the words alone."""
    choice = answer["choices"][0]
    if called := read_call(choice["message"]["content"] or "", required=required):
        name, given = called
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}  # fmt: skip
        choice["message"] |= {"tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    return answer


class CallServer:
    """Passes chat completions on; the models' server is at `models`."""

    def __init__(self, models: str) -> None:
        self._models = models
        self._number = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request, whole also where a stream is asked for."""
        body = await request.json()
        tools = bool(body.pop("tools", ()))
        required = body.pop("tool_choice", "auto") == "required"
        for name in ("parallel_tool_calls", "stream", "stream_options"):
            body.pop(name, None)
        body["messages"] = plain_messages(body["messages"], tools=tools)
        async with self._http.post(f"{self._models}/v1/chat/completions", json=body) as got:
            answer = await got.json(content_type=None)
            if tools and got.ok:
                self._number += 1
                answer = with_call(answer, self._number, required=required)
            return web.json_response(answer, status=got.status)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Yield the address while it serves."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/chat/completions", self.answer)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as self._http:
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            finally:
                await runner.cleanup()
