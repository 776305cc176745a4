"""A provider on a host of its own: OpenAI's chat completions; every call is written down.

`python provider.py PORT FILE` answers each message after a while. A call that was answered to its
end is one line of FILE: the model and the last message. Streams carry the time of each chunk.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvicorn

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
CHUNKS, PACE = 20, 0.5
LATENCY = 0.4


class Provider:
    def __init__(self, file):
        self.file = Path(file).open("a", buffering=1)

    def note(self, kind, body):
        text = body["messages"][-1]["content"]
        print(json.dumps([kind, body["model"], text]), file=self.file)

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
            await asyncio.sleep(LATENCY)
            message = {"role": "assistant", "content": "It is 42.\nAnswer: 42"}
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
            await asyncio.sleep(PACE if slow else LATENCY / CHUNKS)
            await say({"role": "assistant", "content": f"T{time.monotonic_ns()} "})
        await say({}, "stop")
        await say({}, usage=USAGE)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        self.note("ended", body)


if __name__ == "__main__":
    uvicorn.run(
        Provider(sys.argv[2]),
        host="0.0.0.0",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="off",
    )
