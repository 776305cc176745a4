"""Clients on a host of their own: `python load.py PLAN` (JSON) prints what they met, as JSON.

Every request says its own question. A request that fails is tried again if the plan says so, and
both are told: clients of a dead server get an error, and a retry succeeds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp


async def main(plan):
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=60)
    connector = aiohttp.TCPConnector(limit=0, force_close=plan.get("fresh", False))
    headers = {"authorization": f"Bearer {plan['key']}"}
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as http:
        started = time.monotonic()
        results = []
        until = started + plan.get("seconds", 0)
        numbers = iter(range(plan.get("requests", 10**9)))

        async def work():
            for number in numbers:
                if plan.get("seconds") and time.monotonic() > until:
                    return
                results.append(await KINDS[plan["kind"]](http, plan, number, started))

        await asyncio.gather(*(work() for _ in range(plan["concurrency"])))
    print(json.dumps(results))


async def tried(ask, plan, started):
    """What came, and what every try before it met."""
    errors = []
    for _ in range(1 + plan.get("retries", 0)):
        began = time.monotonic()
        try:
            found = await ask()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            found = {"status": 0, "error": type(error).__name__}
        found |= {"began": began - started, "seconds": time.monotonic() - began}
        if found["status"] == 200 and not found.get("error"):
            break
        errors.append(found)
        await asyncio.sleep(plan.get("pause", 0.5))
    return {**found, "errors": errors}


async def chat(http, plan, number, started):
    body = {
        "model": plan["model"],
        "messages": [{"role": "user", "content": f"{plan['tag']} question {number}"}],
    }

    async def ask():
        async with http.post(f"{plan['url']}/v1/chat/completions", json=body) as response:
            said = json.loads(await response.read())
            code = said.get("error", {}).get("code") if response.status != 200 else None
            return {
                "status": response.status,
                "code": code,
                "run": response.headers.get("x-batuta-run-id"),
            }

    return await tried(ask, plan, started)


async def stream(http, plan, number, started):
    body = {"model": plan["model"], "stream": True,
            "messages": [{"role": "user", "content": f"{plan['tag']} SLOW question {number}"}]}  # fmt: skip

    async def ask():
        delays, ended, error = [], False, None
        async with http.post(f"{plan['url']}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                return {"status": response.status, "code": (await response.text())[:200]}
            async for line in response.content:
                now = time.monotonic_ns()
                text = line.decode()
                if text.startswith("data: [DONE]"):
                    ended = True
                elif text.startswith("data: "):
                    event = json.loads(text[6:])
                    if "error" in event:
                        error = event["error"].get("code", "error")
                    for choice in event.get("choices", ()):
                        said = choice["delta"].get("content") or ""
                        delays += [
                            (now - int(word[1:])) / 1e6
                            for word in said.split()
                            if word[0] == "T" and word[1:].isdigit()
                        ]
        return {"status": 200, "error": error or (None if ended else "cut"), "delays": delays}

    return await tried(ask, plan, started)


async def background(http, plan, number, started):
    body = {"model": plan["model"], "input": f"{plan['tag']} job {number}", "background": True}

    async def submit():
        async with http.post(f"{plan['url']}/v1/responses", json=body) as response:
            said = json.loads(await response.read())
            return {
                "status": response.status,
                "id": said.get("id"),
                "code": said.get("error") and said["error"].get("code"),
            }

    return await tried(submit, plan, started)


async def follow(http, plan, number, started):
    """Where an acknowledged job ends, asked until it has."""
    name, until = plan["ids"][number], time.monotonic() + plan["patience"]
    status = None
    while time.monotonic() < until:
        try:
            async with http.get(f"{plan['url']}/v1/responses/{name}") as response:
                said = await response.json(content_type=None)
                status = said.get("status") or response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            status = type(error).__name__
        if status in {"completed", "failed", "incomplete", "cancelled"}:
            break
        await asyncio.sleep(0.5)
    return {"id": name, "status": status, "seconds": time.monotonic() - started}


KINDS = {"chat": chat, "stream": stream, "background": background, "follow": follow}

if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
