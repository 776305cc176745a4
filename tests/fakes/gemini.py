"""A fake of Google's Gemini API."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from fakes.server import FakeServer, Received, Said, need, only, sse

USAGE = {
    "promptTokenCount": 20,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "cachedContentTokenCount": 4,
    "totalTokenCount": 30,
}
_CONFIG = {
    "candidateCount",
    "temperature",
    "topP",
    "maxOutputTokens",
    "stopSequences",
    "seed",
    "responseMimeType",
    "responseJsonSchema",
    "thinkingConfig",
}
_PARTS = {"text", "inlineData", "fileData", "functionCall", "functionResponse"}


class FakeGemini(FakeServer):
    """`url` is the base URL, with `/v1beta`; a reply whose finish is `BLOCKED` blocks the prompt."""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1beta"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1beta/models/{call}", self.handle)]

    def streams(self, received: Received) -> bool:
        return received.path.endswith(":streamGenerateContent")

    def refuse(self, status: int, kind: str, code: str | None, message: str) -> dict[str, Any]:
        detail = [{"reason": code}] if code else []
        error = {"code": status, "message": message, "status": kind.upper(), "details": detail}
        return {"error": error}

    def validate(self, received: Received) -> None:
        body = received.body
        need(received.headers.get("x-goog-api-key") == self.key, "wrong key")
        need(self.key not in str(received.query), "key in the URL")
        need(
            re.search(r"/models/[\w.-]+:(?:stream)?[gG]enerateContent$", received.path),
            f"path {received.path}",
        )
        if self.streams(received):
            need(received.query == {"alt": "sse"}, "alt")
        only(
            body,
            {"contents", "systemInstruction", "generationConfig", "tools", "toolConfig"},
            "body",
        )
        only(body.get("generationConfig", {}), _CONFIG, "generationConfig")
        need(body["contents"], "no contents")
        before = ""
        for turn in body["contents"]:
            only(turn, {"role", "parts"}, "content")
            need(turn["role"] in {"user", "model"} and turn["role"] != before, "roles")
            before = turn["role"]
            need(turn["parts"], "no parts")
            for part in turn["parts"]:
                _part(part, turn["role"])
        for tool in body.get("tools", []):
            for function in tool["functionDeclarations"]:
                only(function, {"name", "description", "parametersJsonSchema"}, "function")

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        body = self._chunk(_parts(said), _finish(said), (said.usage or USAGE) if usage else None)
        for number in range(1, received.body.get("generationConfig", {}).get("candidateCount", 1)):
            other = _parts(Said(f"{said.text} ({number})"))
            content = {"role": "model", "parts": other}
            body["candidates"].append(
                {"content": content, "finishReason": _finish(said), "index": number}
            )
        return body

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        chunks = [b": hello\r\n\r\n", b": more\r\n\r\n"]
        parts: list[dict[str, Any]] = [
            {"text": piece, "thought": True} for piece in self.pieces(said.reasoning)
        ]
        parts += [{"text": piece} for piece in self.pieces(said.text)]
        chunks += [sse(self._chunk([part], "", None)) for part in parts]
        calls = _parts(Said(calls=said.calls))
        if calls:
            chunks.append(sse(self._chunk(calls, "", None)))
        for number in range(1, received.body.get("generationConfig", {}).get("candidateCount", 1)):
            for piece in self.pieces(f"{said.text} ({number})"):
                chunk = self._chunk([{"text": piece}], "", None)
                chunk["candidates"][0]["index"] = number
                chunks.append(sse(chunk))
            chunk = self._chunk([], _finish(said), None)
            chunk["candidates"][0]["index"] = number
            chunks.append(sse(chunk))
        last = self._chunk([], _finish(said), (said.usage or USAGE) if usage else None)
        return [*chunks, sse(last)]

    def _chunk(
        self, parts: list[dict[str, Any]], finish: str, usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        if finish == "BLOCKED":
            body: dict[str, Any] = {"promptFeedback": {"blockReason": "SAFETY"}}
        else:
            candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}}
            if finish:
                candidate["finishReason"] = finish
            body = {"candidates": [candidate]}
        body["modelVersion"] = "gemini-2026"
        return body | ({"usageMetadata": usage} if usage else {})


def _parts(said: Said) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if said.reasoning:
        parts.append({"text": said.reasoning, "thought": True})
    if said.text:
        parts.append({"text": said.text})
    return parts + [{"functionCall": {"name": n, "args": a}} for _, n, a in said.calls]


def _finish(said: Said) -> str:
    return said.finish or "STOP"


def _part(part: dict[str, Any], role: str) -> None:
    only(part, _PARTS | {"thoughtSignature"}, "part")
    need(len(set(part) & _PARTS) == 1, "a part is one thing")
    if "functionCall" in part:
        need(role == "model" and isinstance(part["functionCall"]["args"], dict), "functionCall")
    if "functionResponse" in part:
        response = part["functionResponse"]
        need(role == "user" and isinstance(response["response"], dict), "functionResponse")
        need(response["name"], "name of the function")
    if "inlineData" in part:
        need(set(part["inlineData"]) == {"mimeType", "data"}, "inlineData")
