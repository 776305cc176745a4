"""One model at several addresses: by weight, one after another, with a pause for who fails."""

from collections import Counter
from dataclasses import replace

import pytest

from batuta.clients import (
    HttpTransport,
    RetryPolicy,
    ScriptedClient,
    WorkerHealth,
    WorkerSpec,
    open_client,
)
from batuta.clients.factory import Deployment, Deployments
from batuta.clients.http_target import Secret
from batuta.clients.providers import DeploymentSpec
from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import worker_spec
from batuta.core import Request, Worker, WorkerId, assistant_message, user_message
from batuta.core.conductor import NullListener
from batuta.errors import BadRequestError, ConfigError, ProviderOverloadedError, RateLimitError
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Fault

pytestmark = pytest.mark.anyio


class Counting:
    def __init__(self, error=None):
        self.calls, self.error = 0, error

    async def complete(self, request, listener=None):
        self.calls += 1
        if self.error:
            raise self.error
        return await ScriptedClient(lambda _: "Fine.").complete(request)


def ask(text):
    return Request(messages=(user_message(text),))


async def test_calls_are_shared_by_weight():
    heavy, light, spare = Counting(), Counting(), Counting()
    both = Deployments([Deployment(heavy, 3), Deployment(light, 1), Deployment(spare, 0)])
    for number in range(800):
        await both.complete(ask(f"question {number}"))
    assert 540 < heavy.calls < 660 and light.calls == 800 - heavy.calls
    assert spare.calls == 0


async def test_a_conversation_stays_at_its_deployment():
    members = [Counting() for _ in range(5)]
    both = Deployments([Deployment(one) for one in members])
    said = [user_message("Hello")]
    for _ in range(6):
        await both.complete(Request(messages=tuple(said)))
        said += [assistant_message("Hi."), user_message("More.")]
    assert Counter(one.calls for one in members) == {0: 4, 6: 1}


@pytest.mark.parametrize("error", [ProviderOverloadedError("busy"), RateLimitError("slow down")])
async def test_who_fails_is_followed_by_another_and_the_failure_is_told(error):
    bad, good, told = Counting(error), Counting(), []

    class Listening(NullListener):
        async def on_failure(self, failure):
            told.append(failure.code)

    both = Deployments([Deployment(bad, 1000), Deployment(good, 0)])
    assert (await both.complete(ask("hi"), Listening())).text == "Fine."
    assert (bad.calls, good.calls, told) == (1, 1, [error.code])


async def test_a_fault_of_the_request_is_not_repeated_elsewhere():
    bad, good = Counting(BadRequestError("no")), Counting()
    with pytest.raises(BadRequestError):
        await Deployments([Deployment(bad, 1), Deployment(good, 0)]).complete(ask("hi"))
    assert good.calls == 0


def opened(one, two, http, weight=0.0, **more):
    """A client of a worker with two deployments, the second with that weight."""
    worker = Worker(id=WorkerId("ada"), model="gpt-5")
    specs = [
        WorkerSpec(worker=worker, provider="openai", base_url=server.url, key=Secret(KEY))
        for server in (one, two)
    ]
    other = DeploymentSpec(spec=specs[1], weight=weight)
    spec = replace(specs[0], deployments=(other,))
    return open_client(spec, http, policy=RetryPolicy(base=0.0), **more)


async def test_a_failed_deployment_is_left_alone_for_a_while():
    async with (
        FakeOpenAI("One.", [Fault.SERVER_ERROR] * 9) as one,
        FakeOpenAI("Two.") as two,
        HttpTransport() as http,
    ):
        client = opened(one, two, http)
        for _ in range(5):
            assert (await client.complete(ask("hi"))).text == "Two."
        assert (len(one.requests), len(two.requests)) == (1, 5)


async def test_deployments_that_have_all_failed_once_are_called_again():
    async with (
        FakeOpenAI("One.", [Fault.SERVER_ERROR]) as one,
        FakeOpenAI("Two.", [Fault.SERVER_ERROR]) as two,
        HttpTransport() as http,
    ):
        client = opened(one, two, http, health=WorkerHealth())
        for _ in range(7):
            assert (await client.complete(ask("hi"))).text == "One."
        assert (len(one.requests), len(two.requests)) == (8, 1)


async def test_a_failure_of_the_only_deployment_that_is_not_skipped_is_retried():
    for text in ("a", "b", "c", "d", "e", "f"):  # conversations of either deployment
        async with (
            FakeOpenAI("One.", [Fault.SERVER_ERROR] * 9) as one,
            FakeOpenAI("Two.", [None, Fault.SERVER_ERROR]) as two,
            HttpTransport() as http,
        ):
            client = opened(one, two, http, weight=1.0)
            answers = [(await client.complete(ask(each))).text for each in (text, text * 2, text)]
        assert answers == ["Two."] * 3


async def test_a_deployment_that_limits_the_rate_is_left_alone_while_another_is_free():
    async with (
        FakeOpenAI("One.", [Fault.RATE_LIMIT] * 9) as one,
        FakeOpenAI("Two.") as two,
        HttpTransport() as http,
    ):
        one.retry_after = {"retry-after": "20"}
        client = opened(one, two, http)
        for _ in range(3):
            assert (await client.complete(ask("hi"))).text == "Two."
        assert (len(one.requests), len(two.requests)) == (1, 3)


async def test_a_deployment_that_pauses_is_waited_for_if_the_others_pause_or_fail():
    for fault in (Fault.RATE_LIMIT, Fault.SERVER_ERROR):
        async with (
            FakeOpenAI("One.", [Fault.RATE_LIMIT]) as one,
            FakeOpenAI("Two.", [None, fault]) as two,
            HttpTransport() as http,
        ):
            client = opened(one, two, http)
            answers = [(await client.complete(ask("hi"))).text for _ in range(3)]
        assert answers == ["Two.", "One.", "One."]


def test_deployments_of_the_settings_file():
    setting = WorkerSetting.model_validate({
        "id": "ada", "model": "m", "base_url": "http://127.0.0.1:1/v1", "key_env": "A", "weight": 3,
        "deployments": [{"base_url": "http://127.0.0.1:2/v1", "key_env": "B", "model": "m-eu", "weight": 1}],
    })  # fmt: skip
    spec = worker_spec(setting, {"A": "sk-a-0123456789", "B": "sk-b-0123456789"})
    (other,) = spec.deployments
    assert (spec.weight, other.weight, other.spec.worker.model) == (3, 1, "m-eu")
    assert (other.spec.worker.id, other.spec.key.reveal()) == ("ada", "sk-b-0123456789")
    with pytest.raises(ConfigError, match="B"):
        worker_spec(setting, {"A": "sk-a-0123456789"})
