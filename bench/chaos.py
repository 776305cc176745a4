"""Two replicas on one PostgreSQL, one of them killed every so often: `python bench/chaos.py [MINUTES]`

Plain, streamed and background requests of one key with budgets, over a provider that fails one time
in ten; every 20 s one of the two servers is killed (SIGKILL) and started again. At the end, once
what dead processes held has expired, three things must hold: every background response that was
acknowledged has ended; every run whose answer was given is in the ledger, with what it cost or as
lost; what was spent is, to the last digit, what the ledger says, and nothing is reserved. Exit 1 if not.

PostgreSQL: BATUTA_TEST_POSTGRES, by default postgresql://postgres@127.0.0.1:5432/postgres.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import anyio
from sqlalchemy import create_engine, make_url, text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from fakes.chaotic import REFUSED, Chaotic  # pyright: ignore[reportMissingImports]
from fakes.server import KEY, Fault  # pyright: ignore[reportMissingImports]
from fakes.serving import Server  # pyright: ignore[reportMissingImports]

EVERY = 20.0
EXPIRED = 170.0
"""Seconds after which what a dead process reserved counts as spent, and its runs are lines `lost`."""
UNWRITTEN = 2.0
"""Seconds before it is killed of which a server may have written nothing, on a busy machine."""
ADMIN, SECRET = "the-admins-own-token", "s" * 32
POSTGRES = os.environ.get("BATUTA_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
POSTGRES = POSTGRES.replace("postgresql://", "postgresql+psycopg://", 1)
POOL = """
[conductor]
worker = "vote"
[server]
grace_s = 2
"""
WORKER = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "{url}"
key_env = "PROVIDER_KEY"
model = "m-{id}"
price = {{ input = 1, output = 2 }}
"""


class Load:
    """What was asked, and what was acknowledged."""

    def __init__(self, key):
        self.headers = {"authorization": f"Bearer {key}"}
        self.jobs, self.runs, self.statuses, self.broken = set(), {}, {}, 0

    async def ask(self, servers, until):
        rng = random.Random()
        timeout = aiohttp.ClientTimeout(total=40)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as http:
            while time.monotonic() < until:
                try:
                    await self._one(http, rng.choice(servers)["url"], rng.random())
                except (aiohttp.ClientError, TimeoutError, OSError):
                    self.broken += 1
                    await anyio.sleep(0.2)

    async def _one(self, http, url, kind):
        body: dict[str, Any] = {"model": "batuta-ultra" if kind < 0.3 else "worker/ada"}
        if kind < 0.5:
            path, body["messages"] = "chat/completions", [{"role": "user", "content": "hi"}]
            body["stream"] = kind < 0.15
        else:
            path, body["input"], body["background"] = "responses", "hi", True
        async with http.post(f"{url}/v1/{path}", json=body) as got:
            data = await got.read()
            self.statuses[got.status] = self.statuses.get(got.status, 0) + 1
            if got.status != 200:
                await anyio.sleep(0.05)
            elif path == "responses":
                self.jobs.add(json.loads(data)["id"])
            elif not body["stream"] or b"[DONE]" in data:
                self.runs[got.headers["x-batuta-run-id"]] = time.monotonic()
        await anyio.sleep(0.05)


async def replica(slot, folder, file, environ, stop, told):
    """One server, started again whenever it was killed, or could not start, as a supervisor would."""
    while not stop.is_set():
        try:
            async with Server(folder, "--pool", file, **environ) as server:
                slot["server"], slot["url"] = server, str(server.http._base_url).rstrip("/")
                await server.process.wait()
        except RuntimeError as error:
            told["failed_starts"].append(str(error)[-300:])
            await anyio.sleep(1)


async def kill(slots, until, told):
    rng = random.Random(7)
    while time.monotonic() + EVERY < until:
        await anyio.sleep(EVERY)
        server = rng.choice(slots)["server"]
        if server.process.returncode is not None:
            continue  # it was killed before and has not come back yet
        try:
            server.process.send_signal(signal.SIGKILL)
        except ProcessLookupError:  # it has ended, and nobody has noticed yet
            continue
        told["kills"] += 1
        told["killed_at"].append(time.monotonic())


async def ended(slots, load):
    """The acknowledged background responses that have not ended, or are not there."""
    async with aiohttp.ClientSession(headers=load.headers) as http:
        left, states = set(load.jobs), {}
        with anyio.move_on_after(240):
            while left:
                for name in sorted(left):
                    async with http.get(f"{slots[0]['url']}/v1/responses/{name}") as got:
                        body = await got.json()
                    state = body.get("status", f"{got.status}")
                    if state in {"completed", "failed", "incomplete", "cancelled"}:
                        states[state] = states.get(state, 0) + 1
                        left.discard(name)
                await anyio.sleep(1)
        return left, states


def books(url, load, kills):
    """What the database says at last; answers just before a kill need no line of their own."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("select run_id, usd, assumed_usd from ledger")).all()
        known = {row[0] for row in rows}
        runs = connection.execute(text("select id, usd from runs")).all()
        spent = connection.execute(
            text("select account, period, spent, reserved from spending")
        ).all()
        held = connection.execute(text("select count(*) from reservations")).scalar()
    engine.dispose()
    by_run = {}
    for name, usd, _assumed in rows:
        by_run[name] = by_run.get(name, Decimal(0)) + usd
    return {
        "runs": len(runs),
        "lost_lines": sum(1 for name in known if name not in {row[0] for row in runs}),
        "acknowledged_not_in_ledger": sorted(
            run
            for run, at in load.runs.items()
            if run not in known and not any(0 <= kill - at <= UNWRITTEN for kill in kills)
        ),
        "runs_unlike_their_ledger": [name for name, usd in runs if by_run.get(name) != usd],
        "reserved": [row[0] for row in spent if row[3]],
        "reservations": held,
    }


async def main(minutes):
    admin = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    name = f"batuta_chaos_{uuid4().hex[:10]}"
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = make_url(POSTGRES).set(database=name)
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await storm(Path(folder), plain, url, minutes)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


async def storm(folder, plain, url, minutes):
    async with Chaotic("Fine.", 3, 0.1, (*REFUSED, Fault.CUT)) as provider:
        file = folder / "batuta.toml"
        file.write_text(
            POOL + "".join(WORKER.format(id=n, url=provider.url) for n in ("ada", "bob", "cyd"))
        )
        environ = {
            "BATUTA_STORE": plain,
            "BATUTA_SECRET": SECRET,
            "BATUTA_ADMIN_TOKEN": ADMIN,
            "PROVIDER_KEY": KEY,
        }
        report: dict[str, Any] = {}
        slots: list[dict[str, Any]] = [{}, {}]
        told: dict[str, Any] = {"kills": 0, "killed_at": [], "failed_starts": []}
        stop = anyio.Event()
        async with anyio.create_task_group() as servers:
            for number, slot in enumerate(slots):
                servers.start_soon(
                    replica, slot, folder / str(number), str(file), environ, stop, told
                )
            while not all("url" in slot for slot in slots):
                await anyio.sleep(0.2)
            key = await new_key(slots[0]["url"])
            load, until = Load(key), time.monotonic() + minutes * 60
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(load.ask, slots, until)
                tasks.start_soon(kill, slots, until, told)
            await anyio.sleep(EXPIRED)
            left, states = await ended(slots, load)
            await anyio.sleep(5)
            found = await anyio.to_thread.run_sync(books, url, load, told.pop("killed_at"))
            report = {**told, "statuses": load.statuses, "connections_broken": load.broken, "answered": len(load.runs),
                      "background": len(load.jobs), "ended": states, "background_lost": sorted(left), **found}  # fmt: skip
            stop.set()
            servers.cancel_scope.cancel()
    return report


async def new_key(url):
    limits = {"per_day": "1000", "per_month": "1000", "rpm": 1_000_000}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {ADMIN}"}) as http,
        http.post(f"{url}/v1/admin/keys", json={"name": "chaos", "limits": limits}) as got,
    ):
        return (await got.json())["key"]


if __name__ == "__main__":
    result = anyio.run(main, float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    print(json.dumps(result, indent=1))
    wrong = (
        "background_lost",
        "acknowledged_not_in_ledger",
        "runs_unlike_their_ledger",
        "reserved",
        "reservations",
    )
    sys.exit(1 if any(result[name] for name in wrong) else 0)
