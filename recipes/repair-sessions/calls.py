"""Lets models that call no tools by themselves call them: an OpenAI server before llama.cpp that holds their form.

The small models here write calls of tools in no form that llama.cpp knows. So their tools go into the prompt, and the
reply is held to a JSON Schema, as hosts of open models do: a call of one of the tools, or the words at the
end. What asks for no tools is passed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

Json = dict[str, Any]
DONE = "done"
_TOLD = (
    'Reply with one JSON object. To use a tool: {{"tool": NAME, and its fields}}. The tools: {tools} When the task is '
    'done: {{"tool": "done", "words": what you did}}.'
)  # fmt: skip


def call_schema(tools: list[Json], choice: str) -> Json:
    """Return the schema of a reply: a call of one of the tools, or the last words where none is required."""
    ends = {"properties": {"tool": {"const": DONE}, "words": {"type": "string", "maxLength": 200}}, "required": ["tool", "words"]}  # fmt: skip
    forms = [
        {"properties": {"tool": {"const": one["name"]}, **bounded(one["parameters"].get("properties", {}))},
         "required": ["tool", *one["parameters"].get("properties", {})]}
        for one in tools
    ]  # fmt: skip
    return {"anyOf": [{"type": "object", "additionalProperties": False, **form} for form in (forms if choice == "required" else [*forms, ends])]}  # fmt: skip


def bounded(fields: Json) -> Json:
    """Return the fields with texts of at most 200 characters: a model that repeats itself comes to an end."""
    return {name: form | ({"maxLength": 200} if form.get("type") == "string" else {}) for name, form in fields.items()}  # fmt: skip


def plain_messages(messages: list[Json], tools: list[Json]) -> list[Json]:
    """Return the conversation in words alone, with the tools in the system message."""
    plain: list[Json] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)  # fmt: skip
        for call in message.get("tool_calls") or ():
            text = json.dumps({"tool": call["function"]["name"], **json.loads(call["function"]["arguments"] or "{}")})  # fmt: skip
        role = "user" if message["role"] == "tool" else message["role"]
        plain.append({"role": role, "content": text})
    if tools:
        named = " ".join(f"{one['name']}({', '.join(one['parameters'].get('properties', {}))}): {one['description']}" for one in tools)  # fmt: skip
        told = _TOLD.format(tools=named)
        if plain[0]["role"] == "system":
            plain[0] = {"role": "system", "content": f"{plain[0]['content']}\n\n{told}"}
        else:
            plain.insert(0, {"role": "system", "content": told})
    return plain


def with_call(answer: Json, number: int) -> Json:
    """Return the answer with its object as a call, or as words if it is done."""
    choice = answer["choices"][0]
    said = choice["message"]
    try:
        given = json.loads(said["content"])
        name = given.pop("tool")
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer  # cut off: the words as they are
    if name == DONE:
        choice["message"] = {"role": "assistant", "content": given.get("words") or "Done."}
        return answer
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}  # fmt: skip
    choice |= {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}  # fmt: skip
    return answer


class CallServer:
    """Passes chat completions on; the models' server is at `models`."""

    def __init__(self, models: str) -> None:
        self._models = models
        self._number = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request, whole also where a stream is asked for."""
        body = await request.json()
        tools = [tool["function"] for tool in body.pop("tools", ())]
        choice = body.pop("tool_choice", "auto")
        for name in ("parallel_tool_calls", "stream", "stream_options"):
            body.pop(name, None)
        body["messages"] = plain_messages(body["messages"], tools)
        if tools:
            form = {"name": "call", "schema": call_schema(tools, choice)}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        async with self._http.post(f"{self._models}/v1/chat/completions", json=body) as got:
            answer = await got.json(content_type=None)
            if tools and got.ok:
                self._number += 1
                answer = with_call(answer, self._number)
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
