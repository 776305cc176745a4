"""A session over two replicas of which one is killed: the client asks the other, and nothing is paid twice."""

from __future__ import annotations

import pytest
from bench.session import REQUESTS, claude_body, codex_body, kill_in_session

from gateway.test_session_memory import redis  # noqa: F401 - a fixture
from store.conftest import postgres  # noqa: F401 - a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("postgres", "redis")]


@pytest.mark.parametrize(
    ("make", "moment"),
    [(claude_body, "in a call"), (codex_body, "in a call"), (codex_body, "between")],
    ids=["Claude Code, in a call", "Codex, in a call", "Codex, between a call and its result"],
)
async def test_a_killed_replica_loses_no_turn_and_pays_none_twice(make, moment):
    ended = await kill_in_session(make, moment)
    assert ended.answered == REQUESTS and ended.turned >= REQUESTS // 2
    assert ended.asked == REQUESTS + (moment == "in a call")
    assert ended.written <= ended.billed <= ended.asked
    assert ended.is_whole(), ended
