"""A recorded model answers what it answered, and nothing else."""

from decimal import Decimal

import pytest

from batuta.conductors import single_worker
from batuta.core import (
    Cost,
    NullListener,
    Outcome,
    Plan,
    Question,
    Request,
    Round,
    Sampling,
    Step,
    WorkerId,
    Workflow,
    system_message,
    user_message,
)
from batuta.engine import conduct
from batuta.errors import NotRecordedError
from batuta.lab.tasks.recorded import SIMULATED_PREFIX, ReplayPool
from batuta.language.prompt import worker_messages

pytestmark = pytest.mark.anyio


def ask(text, seed=None):
    return Request(messages=(user_message(text),), sampling=Sampling(seed=seed))


class RecordingListener(NullListener):
    streaming = True

    def __init__(self):
        self.text = ""

    async def on_delta(self, delta):
        self.text += delta.text

    async def on_failure(self, failure):
        raise AssertionError(failure)


async def test_the_recorded_text_or_what_is_known_of_it(record):
    hand = ReplayPool(record).clients()
    assert (await hand["big/model"].complete(ask("What is 1+1?", 0))).text == "One and one make 2."  # pyright: ignore[reportArgumentType]
    assert (await hand["big/model"].complete(ask("What is 1+1?", 1))).text == "Answer: 2"  # pyright: ignore[reportArgumentType]
    bare = await hand["small"].complete(ask("What is 1+1?", 0))  # pyright: ignore[reportArgumentType]
    assert (bare.text, bare.model) == ("Answer: 2", "small")


async def test_what_is_streamed_is_the_reply(record):
    listener = RecordingListener()
    reply = await ReplayPool(record).clients()["big/model"].complete(ask("What is 1+1?"), listener)  # pyright: ignore[reportArgumentType]
    assert listener.text == reply.text
    assert reply.usage.calls == 1


async def test_samples_are_kept_distinct_by_their_seeds(record):
    client = ReplayPool(record).clients()["big/model"]  # pyright: ignore[reportArgumentType]
    question = "What is 3+3?"
    texts = [(await client.complete(ask(question, seed))).text for seed in (4, 7, 4, 7)]
    assert texts == ["Answer: 7", "Answer: 6", "Answer: 7", "Answer: 6"]
    with pytest.raises(NotRecordedError, match="has 2 recorded answers to q2, and none is left"):
        await client.complete(ask(question, 5))


async def test_seeds_that_meet_get_the_next_sample(record):
    client = ReplayPool(record).clients()["big/model"]  # pyright: ignore[reportArgumentType]
    texts = [(await client.complete(ask("What is 3+3?", seed))).text for seed in (0, 2)]
    assert texts == ["Answer: 7", "Answer: 6"]


async def test_calls_without_a_seed_are_all_different(record):
    client = ReplayPool(record).clients()["big/model"]  # pyright: ignore[reportArgumentType]
    texts = {(await client.complete(ask("What is 3+3?"))).text for _ in range(2)}
    assert texts == {"Answer: 7", "Answer: 6"}
    with pytest.raises(NotRecordedError):
        await client.complete(ask("What is 3+3?"))


async def test_a_fresh_hand_begins_again(record):
    for _ in range(3):
        assert (
            await ReplayPool(record).clients()["odd"].complete(ask("What is 1+1?", 9))  # pyright: ignore[reportArgumentType]
        ).text == "Answer: 7"


async def test_a_question_that_a_model_was_not_asked(record):
    with pytest.raises(NotRecordedError, match="odd has 0 recorded answers to q2"):
        await ReplayPool(record).clients()["odd"].complete(ask("What is 3+3?", 0))  # pyright: ignore[reportArgumentType]


async def test_tokens_and_dollars_are_the_records_or_unknown(record):
    hand = ReplayPool(record).clients()
    known = await hand["big/model"].complete(ask("What is 1+1?", 0))  # pyright: ignore[reportArgumentType]
    assert (known.usage.input, known.usage.output, known.usage.estimated) == (10, 20, 0)
    assert known.cost == Cost(Decimal("0.25"))
    unknown = await hand["small"].complete(ask("What is 1+1?", 0))  # pyright: ignore[reportArgumentType]
    assert unknown.usage.estimated == unknown.usage.calls == 1
    assert unknown.cost == Cost(unpriced_calls=1)
    unpriced = await hand["odd"].complete(ask("What is 1+1?", 0))  # pyright: ignore[reportArgumentType]
    assert unpriced.usage.estimated == 0
    assert unpriced.cost == Cost(unpriced_calls=1)


def wrapped(subtask, question="What is 2+2?\nThink."):
    workflow = Workflow(
        (
            Step(subtask=subtask, worker=WorkerId("small")),
            Step(subtask="end", worker=WorkerId("small")),
        )
    )
    present = Round(decision=Plan(workflow), workflow=workflow)
    messages = worker_messages(Question.of(question), workflow, 0, (present,))
    return Request(messages=messages, sampling=Sampling(seed=0))


@pytest.mark.parametrize(
    "request_",
    [
        ask("What is 5+5?"),
        ask("What is 1+1? Check this: 3."),
        wrapped("Verify the solution."),
        Request(messages=(system_message("Be brief."), user_message("What is 1+1?"))),
        Request(messages=(system_message("What is 1+1?"),)),
    ],
)
async def test_what_the_record_cannot_know_is_an_error(record, request_):
    with pytest.raises(NotRecordedError, match="has only answers to its own questions"):
        await ReplayPool(record).clients()["small"].complete(request_)  # pyright: ignore[reportArgumentType]


async def test_what_is_simulated_says_so(record):
    client = ReplayPool(record, simulate=True).clients()["small"]  # pyright: ignore[reportArgumentType]
    reply = await client.complete(wrapped("Verify the solution."))
    assert (reply.text, reply.model) == ("Answer: 7", f"{SIMULATED_PREFIX}small")
    assert (await client.complete(ask("What is 2+2?\nThink.", 0))).model == "small"
    with pytest.raises(NotRecordedError):
        await client.complete(wrapped("Solve it.", "What is 9+9?"))


async def test_the_engine_runs_on_a_recorded_pool(record):
    for place, task in enumerate(record.tasks[:3]):
        for model in ("big/model", "small"):
            run = await conduct(
                Question.of(task.question),
                single_worker(model),
                record.pool(),
                ReplayPool(record).clients(),
                seed=0,
            )
            assert run.outcome is Outcome.ANSWERED
            grade = record.grade(task, run.answer)
            assert grade.score == record.credit_qm()[place, record.models.index(model)]


async def test_a_run_over_what_cannot_be_known_fails_and_says_why(record):
    run = await conduct(
        Question.of("Not recorded?"),
        single_worker("small"),
        record.pool(),
        ReplayPool(record).clients(),
    )
    assert run.outcome is Outcome.FAILED
    assert run.error_code == "not_recorded"
