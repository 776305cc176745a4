"""Bent replies through a server, in every dialect: `python bench/mutated_replies.py 20000` for longer."""

from __future__ import annotations

import pytest

from batuta.clients import HttpTransport
from wires.bent_replies import BLOCK, KeepingStore, asked, case_of, judge, served, stored, tell

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(300)
async def test_what_bent_replies_say_is_in_the_answer_or_the_answer_is_an_error(tmp_path):
    faults: list[str] = []
    async with KeepingStore(tmp_path / "runs.db") as store, HttpTransport() as http:
        for start in range(7_000_000, 7_000_000 + 6 * BLOCK, BLOCK):
            async with served(case_of(start), store, http) as (server, upstream):
                for number in range(start, start + BLOCK):
                    one = asked(number)
                    if one.throttles:  # the next ones would wait for it
                        continue
                    status, raw = await tell(server, upstream, one)
                    run = await stored(store, number)
                    if fault := judge(one, status, raw, run, upstream.given.pop(number, [])):
                        faults.append(f"{one.place}: {fault}")
    assert not faults, "\n".join(faults)
