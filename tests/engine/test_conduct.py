"""A run from the question to its outcome, on scripted workers."""

import time
from decimal import Decimal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.folding import fold_events

from batuta.clients import RetryClient, RetryPolicy, ScriptedClient
from batuta.conductors import (
    FixedConductor,
    LLMConductor,
    RecursiveConductor,
    best_single_worker,
    parallel_vote,
    plan_solve_verify,
    sequential_chain,
    single_worker,
)
from batuta.core import (
    AcceptedAnswer,
    Cost,
    Delta,
    Failure,
    Finish,
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Reply,
    RoundPlanned,
    RunFinished,
    RunHeader,
    Step,
    StepDelta,
    StepFinished,
    StepRetried,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)  # fmt: skip
from batuta.engine import (
    Recorder,
    RunHooks,
    RunSettings,
    TimeoutPolicy,
    conduct,
    estimate_workflow,
)
from batuta.errors import (
    BadRequestError,
    LimitReachedError,
    ProviderOverloadedError,
    ProviderTimeoutError,
    RateLimitError,
    StreamInterruptedError,
)

pytestmark = pytest.mark.anyio
IDS = [WorkerId(f"w{n}") for n in range(4)]
PRICE = Price(input=Decimal(1), output=Decimal(2))
POOL = Pool(
    tuple(Worker(id=w, model="m", price=PRICE, strength=0.1 * (n + 1)) for n, w in enumerate(IDS))
)
Q = Question.of("What is six times seven?")


def echo(worker_id, latency=0.0):
    return ScriptedClient(lambda request: f"{worker_id} says 42", latency=latency, price=PRICE)


def clients(latency=0.0, **special):
    return {w: special.get(w) or echo(w, latency) for w in IDS}


def fixed(*steps, name="fixed"):
    flow = Workflow(tuple(Step(subtask=s, worker=IDS[w], access=tuple(a)) for s, w, a in steps))
    return FixedConductor(name, lambda pool: flow)


async def execute(conductor, models=None, **options):
    events = []

    async def emit(event):
        events.append(event)

    run = await conduct(
        Q, conductor, POOL, models or clients(), hooks=RunHooks(emit=emit), **options
    )
    assert fold_events(events) == run
    assert isinstance(events[0], RunHeader) and isinstance(events[-1], RunFinished)
    assert (run.answer is None) != (run.error is None) or run.reply is not None
    return run, events


class TestRunning:
    async def test_a_chain(self):
        run, events = await execute(fixed(("plan", 0, []), ("solve", 1, [0])))
        assert run.outcome is Outcome.ANSWERED and run.answer == "w1 says 42"
        assert [type(e).__name__ for e in events if not isinstance(e, StepDelta)] == [
            "RunHeader", "RoundPlanned", "StepStarted", "StepFinished", "StepStarted", "StepFinished", "RunFinished"]  # fmt: skip
        assert "w0 says 42" in run.steps[1].request.messages[0].text

    async def test_independent_steps_run_at_the_same_time(self):
        flow = fixed(("a", 0, []), ("b", 1, []), ("c", 2, []), ("d", 3, [0, 1, 2]))
        run, _ = await execute(flow, clients(latency=0.1))
        spans = [step.span for step in run.steps if step.index < 3]
        assert len(spans) == 3
        assert max(span.start for span in spans) < min(span.end for span in spans)

    async def test_usage_and_cost_are_those_of_every_call(self):
        conductor = LLMConductor(
            name="c",
            client=ScriptedClient(
                ["junk", 'model_id=[0,1] subtasks=["a","b"] access_list=[[],[0]]'], price=PRICE
            ),
        )
        run, _ = await execute(conductor)
        parts = [s.usage for s in run.steps] + [
            d.usage for r in run.rounds for d in r.conductor_drafts
        ]
        assert run.usage == sum(parts, Usage()) and run.usage.calls == 4
        assert run.cost.usd == PRICE.of(run.usage) and run.cost.unpriced_calls == 0
        assert run.conductor_usage.calls == 2

    async def test_seeds_reach_every_call_and_differ(self):
        run, _ = await execute(fixed(("a", 0, []), ("b", 0, [])), seed=7)
        again, _ = await execute(fixed(("a", 0, []), ("b", 0, [])), seed=7)
        seeds = [s.request.sampling.seed for s in sorted(run.steps, key=lambda s: s.index)]
        assert len(set(seeds)) == 2
        assert seeds == [
            s.request.sampling.seed for s in sorted(again.steps, key=lambda s: s.index)
        ]

    async def test_wishes_for_the_answer_bind_the_last_step_only(self):
        from batuta.core import ResponseFormat, Sampling, Tool

        wish = Question(
            messages=Q.messages,
            tools=(Tool(name="read_file"), Tool(name="f")),
            tool_choice="auto",
            parallel_tool_calls=None,
            response_format=ResponseFormat(kind="json_object"),
            sampling=Sampling(max_tokens=9, stop=("x",)),
        )
        models = clients(w1=ScriptedClient(['{"a": 1}']))
        run = await conduct(wish, fixed(("a", 0, []), ("b", 1, [0])), POOL, models)
        first, last = (s.request for s in run.steps)
        assert (first.response_format, first.sampling.max_tokens) == (None, None)
        assert first.tools == wish.tools[:1]  # whoever needs to look may; one step alone acts
        assert (last.tools, last.sampling.max_tokens, last.sampling.stop) == (wish.tools, 9, ("x",))


@st.composite
def flows(draw):
    steps = []
    for index in range(draw(st.integers(1, 5))):
        access = draw(st.lists(st.integers(0, index - 1), unique=True)) if index else []
        steps.append((f"subtask-{index}", draw(st.integers(0, 3)), tuple(sorted(access))))
    return steps


class TestLaws:
    @given(steps=flows(), slow=st.lists(st.integers(0, 4), min_size=4, max_size=4))
    @settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
    async def test_the_order_respects_access_and_nothing_else_is_seen(self, steps, slow):
        models = {
            w: ScriptedClient(lambda r, w=w: f"reply of {w}", latency=slow[n] / 1000)
            for n, w in enumerate(IDS)
        }
        run = await conduct(Q, fixed(*steps), POOL, models)
        assert run.outcome is Outcome.ANSWERED and len(run.steps) == len(steps)
        for step in run.steps:
            for earlier in steps[step.index][2]:
                assert run.rounds[0].step(earlier).span.end <= step.span.start
            seen = step.request.messages[0].text
            for other in range(len(steps)):
                readable = other in steps[step.index][2] or other == step.index
                assert (f"subtask-{other}" in seen) == readable

    @given(steps=flows(), tokens=st.integers(0, 900))
    @settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
    async def test_tokens_overrun_by_no_more_than_the_calls_in_flight(self, steps, tokens):
        run = await conduct(Q, fixed(*steps), POOL, clients(), limits=Limits(tokens=tokens))
        calls = [s for s in run.steps if isinstance(s.result, Reply)]
        if run.outcome is Outcome.LIMITED:
            assert run.limit == "tokens"
        for step in calls:  # whoever started had, at its start, something left to spend
            before = sum(
                s.usage.total for s in calls if s.span.end <= step.span.start and s is not step
            )
            assert before < tokens or (tokens == 0 and not calls)

    @given(steps=flows(), micro=st.integers(0, 900))
    @settings(max_examples=settings().max_examples * 40 // 100, deadline=None)
    async def test_dollars_overrun_by_no_more_than_the_calls_in_flight(self, steps, micro):
        usd = micro / 1e6
        run = await conduct(Q, fixed(*steps), POOL, clients(), limits=Limits(usd=usd))
        for step in (s for s in run.steps if isinstance(s.result, Reply)):
            others = [s for s in run.steps if s is not step and s.span.end <= step.span.start]
            assert sum(float(s.cost.usd) for s in others) < usd


class TestLimits:
    async def test_a_deadline_cancels_and_serves_no_step_before_the_last(self):
        run, events = await execute(
            fixed(("a", 0, []), ("b", 1, [0])),
            clients(w1=echo("w1", 60)),
            limits=Limits(seconds=0.2),
        )
        assert (run.outcome, run.limit, run.answer) == (Outcome.LIMITED, "seconds", None)
        assert run.reply is None and run.error_code == "limit" and run.seconds < 60
        cut = run.rounds[0].step(1).result
        assert isinstance(cut, Failure) and cut.usage.estimated == 1 and cut.usage.input > 0
        assert any(isinstance(e, StepFinished) and e.step.index == 1 for e in events)

    async def test_a_deadline_before_any_answer_says_so(self):
        run, _ = await execute(
            best_single_worker(), clients(w3=echo("w3", 5)), limits=Limits(seconds=0.1)
        )
        assert (run.outcome, run.answer, run.error_code) == (Outcome.LIMITED, None, "limit")
        assert "seconds" in run.error

    async def test_no_tokens_no_call(self):
        models = clients()
        run, _ = await execute(best_single_worker(), models, limits=Limits(tokens=0))
        assert (run.outcome, run.limit) == (Outcome.LIMITED, "tokens")
        assert all(not client.requests for client in models.values())

    async def test_a_call_of_unknown_price_counts_under_a_limit_in_dollars(self):
        pool = Pool((Worker(id=IDS[0], model="m"),))
        script = ScriptedClient(
            lambda r: Reply(
                text="x", usage=Usage(calls=1, input=10_000, cached=0, cache_write=0, output=1000)
            ),
            price=None,
        )
        run = await conduct(
            Q,
            fixed(*[("a", 0, range(n)) for n in range(5)]),
            pool,
            {IDS[0]: script},
            limits=Limits(usd=0.3),
        )
        assert (run.outcome, run.limit) == (Outcome.LIMITED, "usd")
        assert len(script.requests) == 2 and run.cost == Cost(Decimal(0), 2)

    async def test_a_workflow_with_too_many_steps_is_not_run(self):
        run, _ = await execute(fixed(*[("a", 0, [])] * 3), limits=Limits(steps=2))
        assert run.outcome is Outcome.FALLBACK
        assert "3 steps where 2 are allowed" in run.rounds[0].decision.reason

    async def test_a_retry_is_not_paid_beyond_the_budget(self):
        failing = ScriptedClient(
            lambda r: ProviderTimeoutError(
                "silence", usage=Usage(calls=1, input=500, estimated=1), cost=Cost(Decimal(1))
            ),
            price=PRICE,
        )
        models = {w: RetryClient(failing, RetryPolicy(attempts=9, base=0.001)) for w in IDS}
        run, _ = await execute(best_single_worker(), models, limits=Limits(usd=3))
        assert len(failing.requests) == 3 and run.cost.usd == 3
        assert (run.outcome, run.limit) == (Outcome.LIMITED, "usd")


class TestFailures:
    async def test_a_substitute_takes_over(self):
        run, events = await execute(
            fixed(("a", 0, [])), clients(w0=ScriptedClient(lambda r: BadRequestError("no")))
        )
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, "w3 says 42")
        (step,) = run.steps
        assert (step.planned, step.worker) == ("w0", "w3") and step.attempts[
            0
        ].failure.code == "bad_request"
        assert [e.attempt.worker for e in events if isinstance(e, StepRetried)] == ["w0"]

    async def test_retries_are_in_the_record(self):
        flaky = RetryClient(
            ScriptedClient(
                [RateLimitError("wait", retry_after=0.01), ProviderOverloadedError("down"), "ok"],
                price=PRICE,
            ),
            RetryPolicy(base=0.001),
        )
        run, _ = await execute(fixed(("a", 0, [])), clients(w0=flaky))
        assert run.answer == "ok" and [a.failure.code for a in run.steps[0].attempts] == [
            "rate_limited",
            "overloaded",
        ]

    async def test_no_answer_at_all_has_a_sentence(self):
        run, _ = await execute(
            best_single_worker(),
            {w: ScriptedClient(lambda r: BadRequestError("dead")) for w in IDS},
        )
        assert (run.outcome, run.answer, run.error_code) == (Outcome.FAILED, None, "bad_request")
        assert "dead" in run.error and len(run.steps[0].attempts) == 2

    async def test_a_fault_inside_a_client_does_not_lose_the_run(self, caplog):
        def broken(request):
            raise KeyError("oops")

        run, _ = await execute(fixed(("a", 0, [])), clients(w0=ScriptedClient(broken)))
        assert (
            run.answer == "w3 says 42" and run.steps[0].attempts[0].failure.code == "internal_error"
        )

    async def test_a_reader_never_sees_two_halves(self):
        class Cut:
            async def complete(self, request, listener):
                await listener.on_delta(Delta(text="half an ans"))
                raise StreamInterruptedError(
                    "cut", usage=Usage(calls=1, input=10, estimated=1), cost=Cost(Decimal(1))
                )

        run, events = await execute(
            fixed(("a", 0, [])), clients(w0=Cut()), settings=RunSettings(live=True)
        )
        assert (run.outcome, run.answer, run.error_code) == (Outcome.FAILED, None, "interrupted")
        assert sum(isinstance(e, StepDelta) for e in events) == 1 and run.cost.usd == 1

        run, _ = await execute(
            fixed(("a", 0, [])), clients(w0=Cut()), settings=RunSettings(live=False)
        )
        assert run.answer == "w3 says 42" and run.cost.usd > 1

    async def test_nor_by_a_retry(self):
        class Cut:
            calls = 0

            async def complete(self, request, listener):
                self.calls += 1
                await listener.on_delta(Delta(text="half"))
                raise StreamInterruptedError(
                    "cut", usage=Usage(calls=1, input=10, estimated=1), cost=Cost(Decimal(1))
                )

        cut = Cut()
        run, _ = await execute(
            fixed(("a", 0, [])),
            clients(w0=RetryClient(cut, RetryPolicy(base=0.001))),  # pyright: ignore[reportArgumentType]
            settings=RunSettings(live=True),
        )
        assert cut.calls == 1 and run.outcome is Outcome.FAILED and run.cost.usd == 1

    async def test_a_decline_is_an_outcome(self):
        run, _ = await execute(
            best_single_worker(),
            clients(
                w3=ScriptedClient(
                    lambda r: Reply(
                        text="I play rehearsal.", usage=Usage(calls=1), finish=Finish.DECLINED
                    )
                )
            ),
        )
        assert (run.outcome, run.answer) == (Outcome.DECLINED, "I play rehearsal.")


class TestCancellation:
    async def test_every_call_is_cancelled_within_a_second(self):
        cut = []

        class Endless:
            async def complete(self, request, listener):
                try:
                    await listener.on_delta(Delta(text="word " * 10))
                    await anyio.sleep(60)
                except anyio.get_cancelled_exc_class():
                    cut.append(time.perf_counter())
                    raise

        events, recorder = [], Recorder()

        async def emit(event):
            events.append(event)

        start = time.perf_counter()
        with anyio.move_on_after(0.1):
            await conduct(
                Q,
                fixed(("a", 0, []), ("b", 1, []), ("c", 2, [])),
                POOL,
                {w: Endless() for w in IDS},  # pyright: ignore[reportArgumentType]
                hooks=RunHooks(emit=emit, recorder=recorder),
            )
        assert len(cut) == 3 and max(cut) - start < 1.1
        run = recorder.run()
        assert run.outcome is Outcome.CANCELLED and fold_events(events) == run
        assert (
            run.usage.calls == 3
            and run.usage.estimated == 3
            and run.usage.output > 0
            and run.cost.usd > 0
        )

    async def test_a_planning_call_that_was_cut_is_counted(self):
        slow = LLMConductor(name="c", client=ScriptedClient(lambda r: FIRST, latency=5))
        run, events = await execute(slow, limits=Limits(seconds=0.1))
        assert (run.outcome, run.limit, run.answer) == (Outcome.LIMITED, "seconds", None)
        assert run.conductor_usage.calls == 1 and run.conductor_usage.input > 500
        assert run.cost.unpriced_calls == 1 and any(isinstance(e, RoundPlanned) for e in events)

    async def test_an_empty_reply_beside_a_call_that_was_cut_is_counted(self):
        models = clients(
            w1=ScriptedClient(["", "never"], latency=0.1, price=PRICE), w3=echo("w3", 60)
        )
        run, _ = await execute(
            fixed(("a", 0, []), ("b", 1, [0])),
            models,
            limits=Limits(seconds=0.3),
            settings=RunSettings(timeouts=TimeoutPolicy(hedge_seconds=0.02)),
        )
        [attempt] = run.steps[1].attempts
        assert attempt.worker == "w1" and attempt.failure.usage.estimated == 0
        assert attempt.failure.cost.usd > 0 and run.usage.calls == 3

    @pytest.mark.parametrize("in_tool", [False, True])
    async def test_the_finished_turns_of_a_call_that_was_cut_are_counted(self, in_tool):
        paid = Usage(calls=1, input=1000, output=5)

        class Turns:
            async def complete(self, request, listener):
                listener.note_turns(paid, Cost(PRICE.of(paid)))
                if not in_tool:
                    await listener.before_call(request, POOL[IDS[0]])
                await anyio.sleep(60)

        run, _ = await execute(
            fixed(("a", 0, [])),
            clients(w0=Turns()),
            limits=Limits(seconds=0.1, usd=1),
        )
        assert run.usage.calls == (1 if in_tool else 2)
        assert run.usage.input == 1000 if in_tool else run.usage.input > 1000
        assert run.cost.usd == PRICE.of(run.usage)

    async def test_the_finished_turns_are_counted_if_the_next_is_not_affordable(self):
        paid = Usage(calls=1, input=1000, output=5)

        class Turns:
            async def complete(self, request, listener):
                listener.note_turns(paid, Cost(PRICE.of(paid)))
                raise LimitReachedError("usd", "$1", "$1")

        run, _ = await execute(fixed(("a", 0, [])), clients(w0=Turns()))
        assert run.usage == paid and run.cost.usd == PRICE.of(paid)

    async def test_a_run_that_is_cancelled_while_it_tells_its_end_is_recorded(self):
        recorder = Recorder()

        async def emit(event):
            if isinstance(event, StepFinished):  # the step that the deadline cut off
                scope.cancel()
                await anyio.sleep(1)

        with anyio.CancelScope() as scope:
            await conduct(
                Q,
                single_worker("w0"),
                POOL,
                clients(latency=60),
                limits=Limits(seconds=0.05),
                hooks=RunHooks(emit=emit, recorder=recorder),
            )
        run = recorder.run()
        assert run.outcome is Outcome.CANCELLED and run.usage.calls == 1

    async def test_an_exposed_failure_after_a_retry_is_paid_once(self):
        class Flaky:
            calls = 0

            async def complete(self, request, listener):
                self.calls += 1
                if self.calls == 2:
                    await listener.on_delta(Delta(text="half"))
                raise StreamInterruptedError(
                    "cut", usage=Usage(calls=1, input=10, estimated=1), cost=Cost(Decimal(1))
                )

        for attempts in (2, 5):
            models = clients(w0=RetryClient(Flaky(), RetryPolicy(attempts=attempts, base=0.001)))  # pyright: ignore[reportArgumentType]
            run, _ = await execute(fixed(("a", 0, [])), models, settings=RunSettings(live=True))
            assert run.outcome is Outcome.FAILED and run.cost.usd == 2 and run.usage.calls == 2


class TestPlanning:
    async def test_failed_attempts_of_the_conductor_count_before_the_next(self):
        down = ProviderTimeoutError(
            "silence", usage=Usage(calls=1, input=500, estimated=1), cost=Cost(Decimal(1))
        )
        model = ScriptedClient(lambda r: down)
        conductor = LLMConductor(
            name="c", client=RetryClient(model, RetryPolicy(attempts=9, base=0.001))
        )
        run, _ = await execute(conductor, limits=Limits(usd=2))
        assert len(model.requests) == 2 and run.cost.usd == 2
        assert (run.outcome, run.limit) == (Outcome.LIMITED, "usd")

    async def test_a_malformed_draft_is_sampled_again_a_bounded_number_of_times(self):
        model = ScriptedClient(["junk", "more", "still"], price=PRICE)
        run, _ = await execute(LLMConductor(name="c", client=model))
        assert len(model.requests) == 3 and (run.outcome, run.answer) == (
            Outcome.FALLBACK,
            "w3 says 42",
        )
        assert len({r.sampling.seed for r in model.requests}) == 3
        assert run.conductor_usage.calls == 3

    async def test_training_sees_the_malformed_draft_and_no_fallback(self):
        run, _ = await execute(
            LLMConductor(name="c", client=ScriptedClient(["junk"], price=PRICE)),
            settings=RunSettings(fallback=False, resamples=0),
        )
        assert (run.outcome, run.error_code, len(run.steps)) == (
            Outcome.FAILED,
            "malformed_plan",
            0,
        )
        assert run.rounds[0].decision.draft.text == "junk" and not run.rounds[0].decision.outage  # pyright: ignore[reportAttributeAccessIssue]

    async def test_a_dead_conductor_is_an_outage(self):
        run, _ = await execute(
            LLMConductor(
                name="c", client=ScriptedClient(lambda r: ProviderOverloadedError("down"))
            ),
            settings=RunSettings(resamples=0),
        )
        assert run.outcome is Outcome.FALLBACK and run.rounds[0].decision.outage  # pyright: ignore[reportAttributeAccessIssue]

    async def test_planning_stops_at_the_budget(self):
        model = ScriptedClient(lambda r: "junk", price=PRICE)
        run, _ = await execute(LLMConductor(name="c", client=model), limits=Limits(tokens=10))
        assert len(model.requests) == 1 and (run.outcome, run.limit) == (Outcome.LIMITED, "tokens")
        assert run.usage.calls == 1

    async def test_a_lawless_conductor_is_malformed(self):
        unknown = FixedConductor(
            "x", lambda pool: Workflow((Step(subtask="a", worker=WorkerId("nobody")),))
        )
        run, _ = await execute(unknown)
        assert run.outcome is Outcome.FALLBACK and "unknown worker" in run.rounds[0].decision.reason


AGAIN = 'model_id=[2] subtasks=["repair"] access_list=["all"]'
STAND = "model_id=[] subtasks=[] access_list=[]"
FIRST = 'model_id=[0,1] subtasks=["a","b"] access_list=[[],[0]]'


class TestRecursion:
    async def test_an_accepted_answer_stands(self):
        run, _ = await execute(
            LLMConductor(name="c", client=ScriptedClient([FIRST, STAND], price=PRICE)),
            limits=Limits(rounds=3),
        )
        assert (run.answer, len(run.rounds), run.limit) == ("w1 says 42", 2, None)
        assert isinstance(run.rounds[1].decision, AcceptedAnswer)

    async def test_a_corrective_workflow_reads_the_round_before(self):
        run, _ = await execute(
            LLMConductor(name="c", client=ScriptedClient([FIRST, AGAIN, STAND], price=PRICE)),
            limits=Limits(rounds=3),
        )
        assert (run.answer, len(run.rounds)) == ("w2 says 42", 3)
        assert "w1 says 42" in run.rounds[1].steps[0].request.messages[0].text

    async def test_rounds_are_bounded_and_the_run_says_so(self):
        run, _ = await execute(
            LLMConductor(name="c", client=ScriptedClient([FIRST, AGAIN, AGAIN], price=PRICE)),
            limits=Limits(rounds=2),
        )
        assert (len(run.rounds), run.limit, run.outcome) == (2, "rounds", Outcome.ANSWERED)

    async def test_a_failed_correction_leaves_the_earlier_answer(self):
        dead = ScriptedClient(
            lambda r: BadRequestError("dead") if "repair" in r.messages[0].text else "early answer"
        )
        run, _ = await execute(
            LLMConductor(name="c", client=ScriptedClient([FIRST, AGAIN], price=PRICE)),
            dict.fromkeys(IDS, dead),
            limits=Limits(rounds=2),
        )
        assert (run.outcome, run.answer) == (Outcome.DEGRADED, "early answer")

    async def test_a_malformed_second_round_leaves_the_answer(self):
        run, _ = await execute(
            LLMConductor(
                name="c", client=ScriptedClient([FIRST, "junk", "junk", "junk"], price=PRICE)
            ),
            limits=Limits(rounds=2),
        )
        assert (run.outcome, run.answer) == (Outcome.ANSWERED, "w1 says 42")

    async def test_another_judge(self):
        conductor = RecursiveConductor(
            best_single_worker(),
            LLMConductor(name="judge", client=ScriptedClient([AGAIN], price=PRICE)),
        )
        run, _ = await execute(conductor, limits=Limits(rounds=2))
        assert run.answer == "w2 says 42" and conductor.name == "best+judge"


CONDUCTORS = {
    "best": best_single_worker(), "single": single_worker("w2"), "chain": sequential_chain(("a", "b"), ("w0", "w1")),
    "plan_solve_verify": plan_solve_verify(), "vote": parallel_vote(4), "recursive": RecursiveConductor(best_single_worker(), single_worker("w1")),
    "learned": LLMConductor(name="c", client=ScriptedClient(lambda r: FIRST)), "junk": LLMConductor(name="j", client=ScriptedClient(lambda r: "]]")),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDUCTORS)
async def test_every_conductor_keeps_the_law(name):
    from batuta.core import PlanningContext

    decision = await CONDUCTORS[name].plan(PlanningContext(question=Q, pool=POOL))
    assert isinstance(decision, MalformedPlan if name == "junk" else Plan)
    if isinstance(decision, Plan):
        assert (
            all(step.worker in POOL for step in decision.workflow.steps)
            and len(decision.workflow) <= 5
        )
    small = Pool(POOL.workers[3:])
    decision = await CONDUCTORS[name].plan(PlanningContext(question=Q, pool=small))
    assert isinstance(decision, MalformedPlan) or all(
        s.worker in small for s in decision.workflow.steps
    )


async def test_an_estimate_calls_nobody_and_grows_with_access():
    flow = Workflow(
        (
            Step(subtask="a", worker=IDS[0]),
            Step(subtask="b", worker=IDS[1]),
            Step(subtask="c", worker=IDS[2], access=(0, 1)),
        )
    )
    expected = estimate_workflow(Q, flow, POOL, output=100)
    assert expected.usage.calls == 3 and expected.cost.usd == PRICE.of(expected.usage)
    assert expected.steps[2].input > expected.steps[1].input + 200


def test_a_fold_needs_a_beginning_and_an_end():
    with pytest.raises(ValueError, match="RunHeader"):
        fold_events([RoundPlanned(0, None)])  # pyright: ignore[reportArgumentType]
