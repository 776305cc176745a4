"""Hunts for requests that hold the event loop. `python bench/fuzz.py [MINUTES]`

Requests of at most 64 kB to the three dialects' routes, made by hypothesis to be slow and run by
workers that repeat what they are asked. What holds the loop for more than 50 ms of processor time
(the least of three tries) is written to `fuzz-found/`, shrunk by nobody; exit status 1.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import anyio
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from gateway.loop_steps import LoopbackApp, attacks, hold, watched_steps

LIMIT = 0.05
FOUND = Path("fuzz-found")


def drawn(number, count=200):
    """Requests of that seed."""
    found = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(attacks())
    def draw(attack):
        found.append(attack)

    draw()
    return found


async def hunt(minutes):
    end, number, asked, longest, over = time.monotonic() + minutes * 60, int(time.time()), 0, 0.0, 0
    statuses = {}
    loopback = LoopbackApp()
    with watched_steps() as steps:
        while time.monotonic() < end:
            number += 1
            for path, body in drawn(number):
                held, status = await hold(loopback, steps, path, body)
                asked += 1
                longest = max(longest, held)
                statuses[status] = statuses.get(status, 0) + 1
                if held > LIMIT or status == 500:
                    over += 1
                    FOUND.mkdir(exist_ok=True)
                    (FOUND / f"{number}-{asked}.json").write_bytes(body)
                    print(
                        f"{held * 1e3:.0f} ms, status {status}: {path} {body[:150]!r} ({len(body)} bytes)",
                        flush=True,
                    )
    return {
        "requests": asked,
        "longest_ms": round(longest * 1e3, 1),
        "over": over,
        "statuses": statuses,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    result = anyio.run(hunt, float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["over"] else 0)
