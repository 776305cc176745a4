"""Which reply may be the answer: only one that was asked for the complete answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.clients import RetryClient, RetryPolicy, ScriptedClient
from batuta.conductors import FixedConductor, LLMConductor, best_single_worker
from batuta.core import (
    Delta,
    Failure,
    Finish,
    Image,
    Limits,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Reply,
    ResponseFormat,
    Round,
    Sampling,
    Step,
    StepRun,
    TimeSpan,
    Tool,
    ToolCall,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)  # fmt: skip
from batuta.engine import RunHooks, RunSettings, TimeoutPolicy, conduct, find_resume_state
from batuta.engine.finalize import finalize_run
from batuta.errors import (
    BadRequestError,
    CircuitOpenError,
    ProviderOverloadedError,
    StreamInterruptedError,
)
from batuta.lab.evals.outage import outage_reason
from batuta.store import decode_run, encode_run
from engine.test_tools import told

pytestmark = pytest.mark.anyio
IDS = [WorkerId(f"w{n}") for n in range(5)]
PRICE = Price(input=1, output=2)  # pyright: ignore[reportArgumentType]
POOL = Pool(
    tuple(Worker(id=w, model="m", price=PRICE, strength=0.1 * (n + 1)) for n, w in enumerate(IDS))
)
Q = Question.of("What is six times seven?")
CRITIQUE = "CRITIQUE: the solution is wrong."
WHOLE = "The answer is 42."
LAST = "Your reply is returned to the user"


def chain(*workers):
    """Steps that read each other; the last one is asked for the complete answer."""
    steps = (
        Step(subtask="check it", worker=IDS[w], access=tuple(range(i)))
        for i, w in enumerate(workers)
    )
    flow = Workflow(tuple(steps))
    return FixedConductor("chain", lambda _: flow)


def scripted(last, whole=WHOLE, earlier=CRITIQUE):
    """A worker that says one thing in an earlier step, one in a last one, one when asked alone."""

    def reply(request):
        text = request.messages[0].text
        if LAST in text:
            return last
        return earlier if "agent" in text else whole

    return ScriptedClient(reply, price=PRICE)


def everybody(*args, **options):
    return {w: scripted(*args, **options) for w in IDS}


def empty(finish=Finish.STOP):
    return Reply(text="", usage=Usage(calls=1, input=9, output=3), finish=finish)


class TestTheLastStepFails:
    async def test_the_fallback_worker_is_asked_the_whole_question(self):
        models = everybody(BadRequestError("dead"))
        run = await conduct(Q, chain(0, 1), POOL, models)
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, WHOLE)
        last = run.rounds[0].step(1)
        assert (last.worker, last.planned, last.as_fallback) == ("w4", "w1", True)
        assert last.request.messages == Q.messages
        assert [attempt.worker for attempt in last.attempts] == ["w1", "w4", "w3"]
        assert sum(len(client.requests) for client in models.values()) == 2 + 3
        assert decode_run(encode_run(run)) == run

    async def test_nobody_has_an_answer_then(self):
        run = await conduct(
            Q, chain(0, 1), POOL, everybody(BadRequestError("a"), BadRequestError("dead"))
        )
        assert (run.outcome, run.answer, run.reply) == (Outcome.FAILED, None, None)
        assert run.error_code == "bad_request" and "dead" in run.error

    async def test_workers_that_an_outage_took_are_left_out(self):
        down = scripted(ProviderOverloadedError("down"), ProviderOverloadedError("down"))  # pyright: ignore[reportArgumentType]
        models = everybody(ProviderOverloadedError("down")) | {IDS[4]: down, IDS[3]: down}
        run = await conduct(Q, chain(0, 4), POOL, models)
        last = run.rounds[0].step(1)
        assert [a.worker for a in last.attempts] == ["w4", "w3", "w2"]
        assert (last.worker, run.answer) == ("w1", WHOLE)
        assert outage_reason(run) == "down"

    async def test_a_small_pool_asks_its_best_worker_once_more(self):
        pool = POOL.subset((IDS[0], IDS[1]))
        run = await conduct(Q, chain(0, 1), pool, everybody(CircuitOpenError("x")))
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, WHOLE)
        assert run.rounds[0].step(1).worker == "w1"

    async def test_the_plain_question_is_not_asked_twice(self):
        models = everybody("x", BadRequestError("dead"))
        run = await conduct(Q, best_single_worker(), POOL, models)
        assert run.outcome is Outcome.FAILED
        assert sum(len(client.requests) for client in models.values()) == 3

    async def test_training_has_no_fallback(self):
        run = await conduct(
            Q,
            chain(0, 1),
            POOL,
            everybody(BadRequestError("dead")),
            settings=RunSettings(fallback=False),
        )
        assert (run.outcome, run.answer, run.reply) == (Outcome.FAILED, None, None)

    async def test_training_has_no_substitutes_either(self):
        """One worker is down in the middle: nobody answers its step, and only it was asked."""
        models = everybody("x")
        models[IDS[0]] = ScriptedClient([BadRequestError("dead")] * 4)
        run = await conduct(Q, chain(0, 1), POOL, models, settings=RunSettings(fallback=False))
        assert run.rounds[0].step(0).worker == IDS[0]
        assert isinstance(run.rounds[0].step(0).result, Failure)
        helped = await conduct(Q, chain(0, 1), POOL, models)
        assert helped.rounds[0].step(0).is_substituted

    async def test_the_form_is_kept(self):
        wish = Question(messages=Q.messages, response_format=ResponseFormat(kind="json_object"))
        models = everybody(BadRequestError("dead"), '{"a": 1}', "{}")
        run = await conduct(wish, chain(0, 1), POOL, models)
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, '{"a": 1}')
        run = await conduct(wish, chain(0, 1), POOL, everybody("prose", "prose", "{}"))
        assert (run.outcome, run.answer, run.error_code) == (Outcome.FAILED, None, "wrong_form")

    async def test_what_a_reader_has_seen_is_not_replaced(self):
        class Cut:
            async def complete(self, request, listener):
                await listener.on_delta(Delta(text="half"))
                raise StreamInterruptedError("cut")

        models = everybody("x") | {IDS[1]: Cut()}

        async def emit(_):
            pass

        run = await conduct(
            Q,
            chain(0, 1),
            POOL,
            models,  # pyright: ignore[reportArgumentType]
            settings=RunSettings(live=True),
            hooks=RunHooks(emit=emit),
        )
        assert (run.outcome, run.answer) == (Outcome.FAILED, None)

    async def test_the_fallback_may_call_a_tool_and_goes_on(self):
        call = Reply(
            text="",
            tool_calls=(ToolCall(id="p", name="look", arguments="{}"),),
            finish=Finish.TOOL_CALLS,
        )
        asked = Question(messages=Q.messages, tools=(Tool(name="look"),))
        models = everybody(BadRequestError("dead"), call)
        run = await conduct(asked, chain(0, 1), POOL, models)
        assert run.outcome is Outcome.WAITING and run.rounds[0].step(1).as_fallback
        answered = told(asked, run, {run.reply.tool_calls[0].id: "a ball"})
        resumed = find_resume_state(run, answered, POOL)
        models = everybody(BadRequestError("dead"), "A ball.")
        then = await conduct(answered, chain(0, 1), POOL, models, resumed=resumed)
        assert (then.outcome, then.answer) == (Outcome.DEGRADED, "A ball.")
        assert then.rounds[0].step(1).request.messages == answered.messages


class TestSubstitutes:
    async def test_a_substitute_of_the_last_step_is_told(self):
        models = everybody(WHOLE) | {IDS[1]: scripted(ProviderOverloadedError("down"))}
        run = await conduct(Q, chain(0, 1), POOL, models)
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, WHOLE)
        assert outage_reason(run) is None and not run.rounds[0].step(1).as_fallback

    async def test_one_of_an_earlier_step_or_a_retry_is_not(self):
        models = everybody(WHOLE) | {
            IDS[0]: scripted("x", earlier=ProviderOverloadedError("down"))  # pyright: ignore[reportArgumentType]
        }
        run = await conduct(Q, chain(0, 1), POOL, models)
        assert run.outcome is Outcome.ANSWERED and run.rounds[0].step(0).worker == "w4"
        flaky = RetryClient(
            ScriptedClient([ProviderOverloadedError("x"), WHOLE]), RetryPolicy(base=0.001)
        )
        run = await conduct(Q, chain(0, 1), POOL, everybody("x") | {IDS[1]: flaky})
        assert (run.outcome, run.answer) == (Outcome.ANSWERED, WHOLE)

    async def test_a_faster_rival_is_as_planned(self):
        slow = ScriptedClient(lambda _: "slow", latency=5)
        run = await conduct(
            Q,
            chain(0, 1),
            POOL,
            everybody(WHOLE) | {IDS[1]: slow},
            settings=RunSettings(timeouts=TimeoutPolicy(hedge_seconds=0.02)),
        )
        assert (run.outcome, run.answer) == (Outcome.ANSWERED, WHOLE)
        assert run.rounds[0].step(1).worker == "w4"


class TestLimits:
    @pytest.mark.parametrize("limits", [Limits(tokens=1), Limits(usd=0.00117)])
    async def test_no_earlier_step_answers_where_a_limit_ends_the_run(self, limits):
        run = await conduct(Q, chain(0, 1, 2), POOL, everybody(WHOLE), limits=limits)
        assert len(run.steps) == 3 and isinstance(run.rounds[0].step(0).result, Reply)
        assert (run.outcome, run.answer, run.reply) == (Outcome.LIMITED, None, None)

    async def test_a_deadline(self):
        slow = scripted(WHOLE)
        late = ScriptedClient(lambda _: WHOLE, latency=5)
        run = await conduct(
            Q, chain(0, 1), POOL, {**everybody("x"), IDS[0]: slow, IDS[1]: late},
            limits=Limits(seconds=0.1),
        )  # fmt: skip
        assert (run.outcome, run.answer, run.limit) == (Outcome.LIMITED, None, "seconds")

    async def test_the_fallback_is_not_paid_beyond_the_limit(self):
        models = everybody(BadRequestError("dead", usage=Usage(calls=1, input=500)))
        run = await conduct(Q, chain(0, 1), POOL, models, limits=Limits(tokens=1200))
        assert (run.outcome, run.answer) == (Outcome.LIMITED, None)
        assert sum(len(client.requests) for client in models.values()) <= 4

    async def test_an_earlier_complete_round_is_an_answer(self):
        first = 'model_id=[0,1] subtasks=["a","b"] access_list=[[],[0]]'
        again = 'model_id=[2,3] subtasks=["repair","check"] access_list=["all",[0]]'

        dead = BadRequestError("dead")

        def execute(limits):
            def reply(request):
                text = request.messages[-1].text
                if "assigned subtask: check" in text:
                    return dead
                return WHOLE if LAST in text else CRITIQUE

            model = ScriptedClient([first, again])
            models = dict.fromkeys(IDS, ScriptedClient(reply, price=PRICE))
            return conduct(Q, LLMConductor(name="c", client=model), POOL, models, limits=limits)

        run = await execute(Limits(rounds=2))
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, WHOLE)
        assert not any(step.as_fallback for step in run.steps)
        spent = (await execute(Limits(rounds=1))).usage.total
        run = await execute(Limits(rounds=2, tokens=spent + 1))
        assert (run.outcome, run.answer) == (Outcome.LIMITED, WHOLE)


class TestEmpty:
    @pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER])
    async def test_one_worker_alone_is_passed_on(self, finish):
        models = everybody("x", empty(finish))
        run = await conduct(Q, best_single_worker(), POOL, models)
        assert (run.outcome, run.answer, run.error) == (Outcome.ANSWERED, "", None)
        assert run.reply.finish is finish and run.usage.calls == 1

    async def test_one_that_promised_calls_and_made_none_is_a_failure(self):
        run = await conduct(Q, best_single_worker(), POOL, everybody("x", empty(Finish.TOOL_CALLS)))
        assert (run.outcome, run.error_code) == (Outcome.FAILED, "empty_reply")

    @pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.CONTENT_FILTER])
    async def test_a_last_step_that_says_why(self, finish):
        run = await conduct(Q, chain(0, 1), POOL, everybody(empty(finish)))
        assert (run.outcome, run.answer, run.reply.finish) == (Outcome.ANSWERED, "", finish)
        assert run.usage.calls == 2

    async def test_or_was_told_where_to_stop(self):
        wish = Question(messages=Q.messages, sampling=Sampling(stop=("x",)))
        run = await conduct(wish, chain(0, 1), POOL, everybody(empty()))
        assert (run.outcome, run.answer, run.usage.calls) == (Outcome.ANSWERED, "", 2)

    async def test_else_others_are_asked_and_at_last_the_whole_question(self):
        models = everybody(empty())
        run = await conduct(Q, chain(0, 1), POOL, models)
        assert (run.outcome, run.answer, run.usage.calls) == (Outcome.DEGRADED, WHOLE, 5)
        run = await conduct(Q, chain(0, 1), POOL, everybody(empty(), empty()))
        assert (run.outcome, run.answer, run.usage.calls) == (Outcome.DEGRADED, "", 5)

    async def test_an_earlier_step_must_say_something(self):
        models = everybody(WHOLE) | {IDS[0]: scripted("x", earlier=empty(Finish.LENGTH))}  # pyright: ignore[reportArgumentType]
        run = await conduct(Q, chain(0, 1), POOL, models)
        step = run.rounds[0].step(0)
        assert (step.worker, step.attempts[0].failure.code) == ("w4", "empty_reply")
        assert step.usage.calls == 2


WORDS = st.sampled_from(
    [CRITIQUE, "", "  \n", BadRequestError("no"), ProviderOverloadedError("down")]
)


@given(
    workers=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    earlier=WORDS,
    last=WORDS,
    whole=WORDS,
    tokens=st.none() | st.integers(0, 800),
    finish=st.sampled_from([Finish.STOP, Finish.LENGTH]),
)
@settings(max_examples=settings().max_examples * 150 // 100, deadline=None)
async def test_an_answer_was_always_asked_for_as_the_whole(
    workers, earlier, last, whole, tokens, finish
):
    def said(text, mark):
        return Reply(text=mark + text, usage=Usage(calls=1, input=50, output=9), finish=finish) if isinstance(text, str) else text  # fmt: skip

    models = everybody(
        said(last, "LAST" if last == CRITIQUE else ""),
        said(whole, "WHOLE" if whole == CRITIQUE else ""),
        said(earlier, "EARLIER" if earlier == CRITIQUE else ""),
    )
    run = await conduct(Q, chain(*workers), POOL, models, limits=Limits(tokens=tokens))
    assert "EARLIER" not in (run.answer or "")
    if run.reply is not None:
        final = run.rounds[-1].step(len(workers) - 1)
        assert final.result is run.reply
        asked = final.request.messages[-1].text
        assert LAST in asked or asked == Q.text
    else:
        assert run.error and run.answer is None
        assert run.outcome in {Outcome.FAILED, Outcome.LIMITED}


def test_an_earlier_answer_does_not_get_the_pictures_of_the_round_that_failed():
    worker = WorkerId("w")
    picture = Image(url="data:image/png;base64,AA==")

    def round_of(*results: Reply | Failure) -> Round:
        steps = tuple(Step(subtask="s", worker=worker) for _ in results)
        ended = tuple(
            StepRun(
                index=index,
                planned=worker,
                worker=worker,
                request=None,
                result=result,
                span=TimeSpan(0, 0),
            )
            for index, result in enumerate(results)
        )
        return Round(decision=Plan(Workflow(steps)), workflow=Workflow(steps), steps=ended)

    first = round_of(Reply(text="42"))
    failed = round_of(Reply(text="", images=(picture,)), Failure(code="overloaded", message="busy"))
    ended = finalize_run([first, failed], seconds=1.0)
    assert ended.outcome is Outcome.DEGRADED and ended.reply == Reply(text="42")
    drawn = round_of(Reply(text="", images=(picture,)), Reply(text="42"))
    ended = finalize_run([drawn, round_of(Failure(code="overloaded", message="busy"))], seconds=1.0)
    assert ended.reply is not None and ended.reply.images == (picture,)
