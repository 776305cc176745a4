"""Lets each system repair the programs, and prints the table. What is done stands in a journal and is not done again.

    python recipes/repair-sessions/measure.py --models http://127.0.0.1:8080 [--programs 78] [--systems a,b] [--at-once 2]
    python recipes/repair-sessions/measure.py --table

The systems take turns at each program, so whatever is there when it is stopped was measured on the same programs. A
session that fails for another reason than the program's (an answer other than 200) is not written down:
it is counted, and the next start tries it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from agent import TOOLS, repair
from answer_record import add_row, read_rows
from calls import CallServer
from programs import Broken, make_programs

from batuta.core.intervals import wilson_interval
from batuta.lab.evals.stats import mcnemar_p_value
from batuta.sandbox import Sandbox

Json = dict[str, Any]
HERE = Path(__file__).parent
COMPARATOR = "worker/qwen-1.5b"
SYSTEMS = (COMPARATOR, "worker/qwen-0.5b", "pattern/escalate", "pattern/advise", "pattern/gate", "pattern/lead-and-hands", "batuta-ultra")  # fmt: skip
"""The strongest comparator first."""
JOURNAL = Path("runs/repair-sessions/sessions.jsonl")
_STARTED = "/v1\n"


@asynccontextmanager
async def run_server(models: str, log: Path) -> AsyncGenerator[str]:
    """Yield the address of a Batuta server of its own over the models, which writes into the log."""
    async with CallServer(models).serve() as address:
        with tempfile.TemporaryDirectory(prefix="repair-sessions-") as home:
            pool = Path(home) / "pool.toml"
            pool.write_text((HERE / "pool.toml").read_text().replace("MODELS", address))
            command = [sys.executable, "-W", "ignore", "-m", "batuta", "serve", "--port", "0", "--pool", str(pool)]  # fmt: skip
            with log.open("w", encoding="utf-8") as said:  # a pipe that nobody reads would fill up
                process = await anyio.open_process(command, env={**os.environ, "BATUTA_HOME": home}, stdout=said, stderr=said)  # fmt: skip
            try:
                yield await read_address(process, log)
            finally:
                process.terminate()
                with anyio.CancelScope(shield=True):
                    await process.aclose()


async def read_address(process: anyio.abc.Process, log: Path) -> str:
    """Return the address that the server writes into its log."""
    while _STARTED not in (said := log.read_text("utf-8")):
        if process.returncode is not None:
            raise SystemExit(f"the server has ended; it said: {said}")
        await anyio.sleep(0.1)
    return "http://" + said.split("at http://")[1].split("/v1")[0]


class Talk:
    """One session of the agent with Batuta: what it asks, and what that took."""

    def __init__(self, http: aiohttp.ClientSession, system: str, program: str) -> None:
        self.http, self.system, self.name = http, system, f"{system} {program}"
        self.tokens, self.usd = 0, 0.0

    async def ask(self, messages: list[Json], tool_choice: str) -> Json:
        """Return the answer's message."""
        body = {
            "model": self.system,
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": tool_choice,
        }
        async with self.http.post("/v1/chat/completions", json=body, headers={"x-session-id": self.name}) as got:  # fmt: skip
            if got.status != 200:
                raise RuntimeError(f"{got.status} {(await got.text())[:300]}")
            answer = await got.json()
        self.tokens += answer["usage"]["total_tokens"]
        self.usd = float(got.headers.get("x-batuta-session-cost", "nan"))
        return answer["choices"][0]["message"]


async def measure(given: argparse.Namespace) -> int:
    """Do what is not done yet; return how many sessions failed."""
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["system"], row["program"]) for row in read_rows(given.journal)}
    systems = given.systems.split(",")
    wanted = [(system, broken) for broken in make_programs(given.programs) for system in systems if (system, broken.id) not in done]  # fmt: skip
    failed: list[str] = []
    if not wanted:
        return 0
    async with (
        run_server(given.models, given.journal.with_name("server.log")) as url,
        Sandbox.open(slots=given.at_once) as sandbox,
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        limiter = anyio.CapacityLimiter(given.at_once)

        async def one(system: str, broken: Broken) -> None:
            async with limiter:
                talk, begun = Talk(http, system, broken.id), time.monotonic()
                try:
                    found = await repair(broken, talk.ask, sandbox)
                except (RuntimeError, aiohttp.ClientError) as error:
                    failed.append(f"{talk.name}: {error}")
                    print(failed[-1], file=sys.stderr)
                    return
                row = {"system": system, "program": broken.id, **found, "usd": talk.usd, "tokens": talk.tokens, "seconds": round(time.monotonic() - begun, 2)}  # fmt: skip
                add_row(given.journal, row)
                print(f"{system} {broken.id}: {'resolved' if found['resolved'] else 'not resolved'} after {len(found['actions'])} actions, {row['seconds']:.0f} s", file=sys.stderr)  # fmt: skip

        async with anyio.create_task_group() as group:
            for system, broken in wanted:
                group.start_soon(partial(one, system, broken))
    return len(failed)


def write_table(rows: list[Json]) -> str:
    """Return the table of what was measured; the comparator first."""
    told = ["| system | n | resolved | 95 % interval | ¢ a program | seconds | tokens | actions | against the comparator |",
            "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    compared = {row["program"]: row["resolved"] for row in rows if row["system"] == COMPARATOR}
    for system in sorted({row["system"] for row in rows}, key=lambda one: (SYSTEMS.index(one) if one in SYSTEMS else len(SYSTEMS), one)):  # fmt: skip
        own = [row for row in rows if row["system"] == system]
        n, right = len(own), sum(row["resolved"] for row in own)
        low, high = wilson_interval(right, n)
        mean = [sum(row[name] for row in own) / n for name in ("usd", "seconds", "tokens")]
        both = [(row["resolved"], compared[row["program"]]) for row in own if row["program"] in compared]  # fmt: skip
        wins, losses = (sum(mine is (not hers) and mine is good for mine, hers in both) for good in (True, False))  # fmt: skip
        against = "–" if system == COMPARATOR else f"+{wins} −{losses} of {len(both)}, p = {mcnemar_p_value(wins, losses):.3f}"  # fmt: skip
        told.append(f"| `{system}` | {n} | {right} ({100 * right / n:.0f} %) | {100 * low:.0f} to {100 * high:.0f} % | {100 * mean[0]:.4f} | {mean[1]:.0f} | {mean[2]:.0f} | {sum(len(row['actions']) for row in own) / n:.1f} | {against} |")  # fmt: skip
    return "\n".join(told)


def main() -> int:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="http://127.0.0.1:8080")
    parser.add_argument("--programs", type=int, default=78)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument(
        "--table", action="store_true", help="print what is there, and measure nothing"
    )
    given = parser.parse_args()
    failed = 0 if given.table else anyio.run(measure, given)
    rows = read_rows(given.journal)
    print(write_table(rows) if rows else "nothing has been measured yet")
    if failed:
        print(f"{failed} sessions failed and are not in the table; start again to try them anew")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
