"""Trying again, and when not to."""

import random

import pytest

from batuta import errors
from batuta.clients import (
    CallLimiter,
    HttpTransport,
    RetryClient,
    RetryPolicy,
    ScriptedClient,
    Secret,
    WorkerSpec,
    open_client,
)
from batuta.clients.catalog import ListedModel, known_worker
from batuta.core import Cost, Request, Usage, user_message
from batuta.errors import LimitReachedError
from clients.cases import RecordingListener
from fakes import FakeOpenAI, Fault

pytestmark = pytest.mark.anyio
ASK = Request(messages=(user_message("Hello?"),))


class Slept(list):
    async def __call__(self, seconds):
        self.append(seconds)


def retry(script, policy=None, seed=0):
    slept = Slept()
    return RetryClient(
        ScriptedClient(script), policy or RetryPolicy(), rng=random.Random(seed), sleep=slept
    ), slept


async def test_passing_errors_are_tried_again_and_told():
    broken = errors.StreamInterruptedError("cut", usage=Usage(calls=1, output=5), cost=Cost())
    client, slept = retry([broken, errors.ProviderOverloadedError("500"), "well"])
    listener = RecordingListener()
    assert (await client.complete(ASK, listener)).text == "well"
    assert [f.code for f in listener.failures] == ["interrupted", "overloaded"]
    assert listener.failures[0].usage.output == 5
    assert len(slept) == 2
    assert 0 <= slept[0] <= 0.5
    assert 0 <= slept[1] <= 1.0


async def test_the_last_error_is_raised():
    client, slept = retry([errors.ProviderOverloadedError(str(n)) for n in range(5)])
    with pytest.raises(errors.ProviderOverloadedError, match="2"):
        await client.complete(ASK)
    assert len(slept) == 2


@pytest.mark.parametrize(
    "kind",
    [
        errors.ProviderAuthError,
        errors.ModelNotFoundError,
        errors.ContextLengthError,
        errors.InsufficientCreditError,
        errors.BadRequestError,
    ],
)
async def test_errors_that_do_not_pass_are_raised_at_once(kind):
    client, slept = retry([kind("no"), "never"])
    with pytest.raises(kind):
        await client.complete(ASK)
    assert not slept


async def test_retry_after_is_honoured_and_not_all_come_back_together():
    client, slept = retry([errors.RateLimitError("wait", retry_after=4.0), "well"])
    await client.complete(ASK)
    assert 4.0 <= slept[0] <= 4.4


async def test_too_long_a_wait_is_not_begun():
    client, slept = retry([errors.RateLimitError("wait", retry_after=31.0), "never"])
    with pytest.raises(errors.RateLimitError):
        await client.complete(ASK)
    assert not slept


@pytest.mark.parametrize(
    "stop", [LimitReachedError("usd", "1", "1"), errors.StreamInterruptedError("half read")]
)
async def test_the_listener_may_stop_it(stop):
    client, slept = retry([errors.ProviderOverloadedError("500"), "never"])
    with pytest.raises(type(stop)) as caught:
        await client.complete(ASK, RecordingListener(stop=stop))
    assert caught.value is stop
    assert not slept


def test_waits_grow_are_capped_and_spread():
    policy, rng = RetryPolicy(attempts=99, base=0.5, cap=8.0), random.Random(1)
    error = errors.ProviderOverloadedError("x")
    for attempt, most in [(1, 0.5), (2, 1.0), (5, 8.0), (50, 8.0)]:
        waits = [policy.wait(attempt, error, rng) for _ in range(400)]
        assert 0 <= min(waits) < most * 0.1  # pyright: ignore[reportArgumentType]
        assert most * 0.9 < max(waits) <= most  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"base": -1.0}, {"max_wait": -1.0}])
def test_a_senseless_policy_is_refused(bad):
    with pytest.raises(ValueError, match="retry policy"):
        RetryPolicy(**bad)


async def test_a_retrying_client_frees_its_place_while_it_waits():
    """The whole stack against a fake: retry around limit around chat."""
    async with (
        HttpTransport(idle=2) as http,
        FakeOpenAI("well", [Fault.RATE_LIMIT, Fault.CUT]) as server,
    ):
        spec = WorkerSpec(
            worker=known_worker("openai", ListedModel(name="gpt-5-mini")),
            provider="openai",
            base_url=server.url,
            key=Secret(server.key),
        )
        limiter = CallLimiter(1)
        listener = RecordingListener(streaming=False)
        client = open_client(spec, http, policy=RetryPolicy(base=0.01), limiter=limiter)
        assert (await client.complete(ASK, listener)).text == "well"
        assert [f.code for f in listener.failures] == ["rate_limited", "interrupted"]
        assert listener.failures[1].cost.usd > 0
        assert (await client.complete(ASK)).text == "well"
