"""A worker that stops answering while it is tuned over."""

from typing import Any

import pytest

from batuta.core import WorkerId
from batuta.errors import CircuitOpenError, ProviderUnreachableError, WorkerLostError
from batuta.lab.tune.candidate_runner import MOST_FAILED
from lab.tune.test_tuning import EQUAL, tune

pytestmark = pytest.mark.anyio


class Failing:
    """A worker's client that fails in some of its calls."""

    def __init__(self, inner, fails):
        self.inner, self.fails, self.calls = inner, fails, 0

    async def complete(self, request, *rest):
        self.calls += 1
        if error := self.fails(self.calls):
            raise error
        return await self.inner.complete(request, *rest)


def clients_of(**fails) -> dict[WorkerId, Any]:
    found = EQUAL.clients()
    return found | {
        WorkerId(name): Failing(found[WorkerId(name)], how) for name, how in fails.items()
    }


async def test_nothing_is_recommended_when_a_worker_has_gone_and_the_sentence_says_what_to_do():
    gone = clients_of(ada=lambda n: ProviderUnreachableError("nobody is there") if n > 60 else None)
    with pytest.raises(WorkerLostError, match=r"ada .*nobody is there.*the same command continues"):
        await tune(EQUAL, 500, clients=gone)
    assert gone[WorkerId("ada")].calls <= 60 + MOST_FAILED + 32  # as many as are under way at once


async def test_a_pause_in_which_a_worker_is_skipped_is_waited_for_and_costs_no_question():
    skipped = CircuitOpenError("ada is skipped", retry_after=0.01)
    paused = clients_of(ada=lambda n: skipped if 60 < n <= 70 else None)
    found, meter, *_ = await tune(EQUAL, 500, clients=paused)
    wanted, all_meter, *_ = await tune(EQUAL, 500)
    assert meter.calls == all_meter.calls
    assert found.nominees.keys() == wanted.nominees.keys()
    assert [one.verdict for one in found.comparisons] == [one.verdict for one in wanted.comparisons]


async def test_a_worker_that_has_never_answered_is_left_out_without_a_pause():
    skipped = CircuitOpenError("ben is skipped", retry_after=3600.0)
    found, *_ = await tune(EQUAL, 500, clients=clients_of(ben=lambda _: skipped))
    assert "ben" in found.left_out
