"""A provider on a host of its own: OpenAI's chat completions; every call is written down.

`python provider.py PORT FILE [SECONDS]` answers each message after a while. A call is a line of FILE when it
begins and one when it was answered to its end: which of both, the model, the last message, the seed,
the time. Streams carry the time of each chunk. Where a message speaks of `number N` the answer is N,
and -1 from the model `weak` if N is odd; else it is 42.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import uvicorn

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
CHUNKS, PACE = 20, 0.5
LATENCY = 0.4


def said_to(body):
    text = "\n".join(message["content"] for message in body["messages"])
    found = re.search(r"number (\d+)", text)
    number = int(found[1]) if found else 42
    if body["model"] == "weak" and number % 2:
        number = -1
    return f"It is {number}.\nAnswer: {number}"


class Provider:
    def __init__(self, file, latency=LATENCY):
        self.file = Path(file).open("a", buffering=1)
        self.latency = latency

    def note(self, kind, body):
        text = body["messages"][-1]["content"]
        row = [kind, body["model"], text, body.get("seed"), time.monotonic()]
        print(json.dumps(row), file=self.file)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = json.loads(raw)
        self.note("began", body)
        stream = bool(body.get("stream"))
        head = b"text/event-stream" if stream else b"application/json"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", head)]}
        )
        frame = {"id": "x", "created": 1, "model": body["model"]}
        if not stream:
            await asyncio.sleep(self.latency)
            message = {"role": "assistant", "content": said_to(body)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {**frame, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            await send({"type": "http.response.body", "body": json.dumps(whole).encode()})
            self.note("ended", body)
            return
        frame["object"] = "chat.completion.chunk"
        slow = "SLOW" in body["messages"][-1]["content"]

        async def say(delta, finish=None, usage=None):
            choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
            event = {**frame, "choices": choices, **({"usage": usage} if usage else {})}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})

        for _ in range(CHUNKS):
            await asyncio.sleep(PACE if slow else self.latency / CHUNKS)
            await say({"role": "assistant", "content": f"T{time.monotonic_ns()} "})
        await say({}, "stop")
        await say({}, usage=USAGE)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        self.note("ended", body)


if __name__ == "__main__":
    uvicorn.run(
        Provider(sys.argv[2], *map(float, sys.argv[3:])),
        host="0.0.0.0",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="off",
    )
