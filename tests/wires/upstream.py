"""An upstream that answers as a case's file says, byte by byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from wires.case import Answer, Refusal

MISSING = object()


class Upstream:
    """Sends `answer` to every request; it keeps their bodies."""

    def __init__(self, refusals: list[Refusal] | None = None) -> None:
        self.refusals = refusals or []
        self.answer = Answer()
        self.pieces: list[bytes] | None = None
        """The pieces of a stream, which are sent one by one; None: the text is sent at once."""
        self.bodies: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        """The bodies that were not refused."""
        self.refused = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.origin = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.lower().split("\r\n")
            [size] = [line for line in lines if line.startswith("content-length:")]
            body = json.loads(await reader.readexactly(int(size.split(":")[1])))
            self.bodies.append(body)
            streamed = body.get("stream") is True or "streamgeneratecontent" in lines[0]
            await self._answer(writer, body, streamed=streamed)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], *, streamed: bool
    ) -> None:
        answer = self.answer
        for refusal in self.refusals:
            found = value_at(body, refusal.when)
            if found is not MISSING and refusal.equals in (None, found):
                self.refused += 1
                answer = Answer(status=refusal.status, reason="No", body=refusal.body)
                break
        else:
            self.taken.append(body)
        text = answer.text(streamed=streamed).encode(errors="surrogatepass")
        events = streamed and answer.status == 200 and bool(answer.stream)
        kind = answer.content_type or ("text/event-stream" if events else "application/json")
        told = {"content-type": kind, "connection": "close", **answer.headers}
        if not events:
            told["content-length"] = str(len(text) + answer.cut)
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        lines += [f"{name}: {value}" for name, value in told.items()]
        writer.write("\r\n".join((*lines, "", "")).encode())
        for piece in [text] if self.pieces is None else self.pieces:
            writer.write(piece)
            await writer.drain()
            if self.pieces is not None:
                await asyncio.sleep(0)
        if answer.cut and events:
            writer.transport.abort()


def value_at(body: Any, path: str) -> Any:
    """The value at a path such as `messages.-1.content`; MISSING: there is none."""
    for name in path.split("."):
        try:
            body = body[int(name)] if isinstance(body, list) else body[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return MISSING
    return body
