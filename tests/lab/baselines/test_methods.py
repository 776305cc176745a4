"""What each method does that the others do not."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from troupe import QUESTION, Troupe, in_turn

from batuta.conductors import FixedConductor
from batuta.core import (
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Role,
    Sampling,
    Step,
    Worker,
    WorkerId,
    Workflow,
)  # fmt: skip
from batuta.errors import ProviderOverloadedError
from batuta.lab.baselines import (
    AblatedConductor,
    BestOfN,
    ConductorSolver,
    MixtureOfAgents,
    MixtureSolver,
    PromptedConductor,
    SelfConsistency,
    SelfReflection,
    ablations,
    best_of_n,
    fixed_pipeline,
    moa,
    pipeline,
    self_reflection,
    with_best_worker,
    with_shuffled_access,
    with_solve_only_subtasks,
)  # fmt: skip
from batuta.lab.baselines.best_of_n import find_judged_sample
from batuta.lab.baselines.roles import CHECKING, COMBINING, JUDGING, PLANNING, best_worker_for_role
from batuta.lab.baselines.self_reflection import says_solution_is_right
from batuta.lab.learners.random_workflows import RandomConductor, random_workflow
from batuta.language.instructions import InstructionKind, classify_instruction

pytestmark = pytest.mark.anyio
POOL = Troupe().pool


def texts(run):
    return {step.index: step.request.messages[-1].text for step in run.steps}


class TestSelfConsistency:
    @pytest.mark.parametrize(
        ("said", "answer"),
        [
            (["Answer: 1", "Answer: 2", "I get 2.\nAnswer: 2"], "Answer: 2"),
            (["Answer: 3", "Answer: 2", "Answer: 1"], "Answer: 3"),
            (["Answer: 1", "Answer: 2", "Answer: 2", "Answer: 1"], "Answer: 1"),
            (["I am stuck.", "I am stuck.", "Answer: 7"], "Answer: 7"),
            (["I am stuck.", "no idea", "no idea"], "no idea"),
            (
                [ProviderOverloadedError("full"), "Answer: 2", ProviderOverloadedError("full")],
                "Answer: 2",
            ),
            (["Answer: x", "Answer: y", ProviderOverloadedError("full")], "Answer: x"),
        ],
    )
    async def test_the_most_frequent_answer_and_of_equals_the_first(self, said, answer):
        troupe = Troupe(1, say=in_turn(*said))
        run = await SelfConsistency(len(said)).answer(QUESTION, troupe.context, 1)
        assert run.outcome is Outcome.ANSWERED and run.answer == answer
        assert run.usage.calls == len([text for text in said if isinstance(text, str)])

    async def test_the_samples_are_of_the_best_worker_alone_and_warm(self):
        troupe = Troupe(3)
        run = await SelfConsistency(3).answer(QUESTION, troupe.context, 1)
        assert {step.worker for step in run.steps} == {"w0"}
        assert {step.request.sampling.temperature for step in run.steps} == {0.7}
        assert {step.request.messages for step in run.steps} == {QUESTION.messages}

    async def test_a_limit_still_leaves_the_vote_of_what_there_is(self):
        troupe = Troupe(1, say=in_turn("Answer: 1", "Answer: 2", "Answer: 2"))
        tight = replace(troupe.context, limits=Limits(tokens=0))
        run = await SelfConsistency(3).answer(QUESTION, tight, 1)
        assert run.outcome is Outcome.LIMITED and run.answer is None


class TestBestOfN:
    @pytest.mark.parametrize(
        ("verdict", "answer"),
        [
            ("The second is sound.\nBest: 1", "b\nAnswer: 2"),
            ("**Best: 2**", "c\nAnswer: 2"),
            ("Best: solution 0, clearly", "a\nAnswer: 1"),
            ("They differ in a step.\nAnswer: 1", "a\nAnswer: 1"),
            ("Answer: 2", "b\nAnswer: 2"),
            ("Best: 9", "b\nAnswer: 2"),
            ("I cannot decide.", "b\nAnswer: 2"),
            ("Answer: 77", "b\nAnswer: 2"),
            (ProviderOverloadedError("full"), "b\nAnswer: 2"),
        ],
    )
    async def test_the_judges_choice_is_honoured_else_the_majority_stands(self, verdict, answer):
        samples = ["a\nAnswer: 1", "b\nAnswer: 2", "c\nAnswer: 2"]
        troupe = Troupe(4, say=in_turn(*samples, verdict, verdict))
        run = await BestOfN(3).answer(QUESTION, troupe.context, 1)
        assert run.answer == answer and run.outcome is Outcome.ANSWERED

    async def test_where_the_question_shows_tests_they_choose_and_nobody_judges(self):
        async def run_tests(question, answer):
            assert question == asked.text
            return "good" in answer

        asked = Question.of("Double it.\nassert double(2) == 4")
        troupe = Troupe(4, say=in_turn("bad\nAnswer: 2", "good\nAnswer: 1", "bad\nAnswer: 2"))
        context = replace(troupe.context, run_tests=run_tests)
        run = await BestOfN(3).answer(asked, context, 1)
        assert run.answer == "good\nAnswer: 1"
        assert run.usage.calls == 3
        troupe = Troupe(4, say=in_turn("a\nAnswer: 1", "b\nAnswer: 2", "c\nAnswer: 2"))
        run = await BestOfN(3).answer(asked, replace(troupe.context, run_tests=run_tests), 1)
        assert run.answer == "b\nAnswer: 2"
        troupe = Troupe(4)
        run = await BestOfN(3).answer(QUESTION, replace(troupe.context, run_tests=run_tests), 1)
        assert run.usage.calls == 4

    async def test_the_judge_is_another_worker_and_reads_every_sample(self):
        troupe = Troupe(4)
        run = await BestOfN(3).answer(QUESTION, troupe.context, 1)
        judge = next(step for step in run.steps if step.index == 3)
        assert judge.worker == "w2" != run.steps[0].worker
        assert judge.request.messages[0].text.count("w0 thinks.") == 3
        assert judge.request.sampling.temperature is None
        assert {s.request.sampling.temperature for s in run.steps if s.index < 3} == {0.7}

    def test_a_number_that_is_no_sample_is_no_choice(self):
        samples = {0: Reply(text="Answer: 5"), 1: Reply(text="Answer: 6")}
        assert find_judged_sample("Best: 4\nAnswer: 6", samples) is samples[1]
        assert find_judged_sample("Best: 4", samples) is None
        assert find_judged_sample("", samples) is None


class TestSelfReflection:
    async def test_it_stops_as_soon_as_the_feedback_is_content(self):
        troupe = Troupe(2, say=in_turn("draft\nAnswer: 1", "Verdict: right, all steps hold."))
        run = await SelfReflection().answer(QUESTION, troupe.context, 1)
        assert run.answer == "draft\nAnswer: 1" and run.usage.calls == 2
        assert run.outcome is Outcome.ANSWERED and run.limit is None

    async def test_five_turns_at_most_and_the_last_revision_is_the_answer(self):
        lines = ("draft", "Wrong: step 1.", "better", "Wrong: step 2.", "best")
        troupe = Troupe(2, say=in_turn(*lines))
        run = await SelfReflection().answer(QUESTION, troupe.context, 1)
        assert run.answer == "best" and run.usage.calls == 5 and run.limit is None
        assert {step.worker for step in run.steps} == {"w0"}
        assert {step.request.sampling.temperature for step in run.steps} == {0.7}
        last = run.rounds[2].steps[0].request.messages[0].text
        assert "better" in last and "Wrong: step 2." in last
        assert "draft" not in last

    async def test_the_feedback_is_never_the_answer(self):
        lines = (
            "draft",
            "Wrong.",
            ProviderOverloadedError("full"),
            ProviderOverloadedError("full"),
        )
        run = await SelfReflection().answer(QUESTION, Troupe(1, say=in_turn(*lines)).context, 1)
        assert run.answer == "draft" and run.usage.calls == 2

    async def test_without_feedback_the_draft_stands(self):
        troupe = Troupe(1, say=in_turn("draft", ProviderOverloadedError("full")))
        run = await SelfReflection().answer(QUESTION, troupe.context, 1)
        assert run.answer == "draft" and run.outcome is Outcome.ANSWERED

    @pytest.mark.parametrize(
        ("feedback", "right"),
        [
            ("Right.", True),
            ("**Verdict:** correct, all 4 steps hold.", True),
            ("The solution is right.", True),
            ("Yes, it is correct", True),
            ("My verdict is: correct", True),
            ("The solution is entirely correct.", True),
            ("Right\n\nStep 1 adds 3.", True),
            ("The answer is right because every step holds.", True),
            ("Correct step 2, which adds where it should subtract.", False),
            ("Wrong: step 2.", False),
            ("Verdict: wrong", False),
            ("The solution is not right.", False),
            ("Incorrect", False),
            ("Right or wrong? Let me see.", False),
            ("Step 1 is right. Step 2 is wrong.", False),
            ("", False),
        ],
    )
    def test_verdicts(self, feedback, right):
        assert says_solution_is_right(Reply(text=feedback)) is right


class TestMixtureOfAgents:
    async def test_each_layer_reads_the_whole_layer_before_it_and_no_other(self):
        def say(worker, request):
            text = request.messages[-1].text
            layer = 1 if "agent_response" not in text else 2 if "layer 1" in text else 3
            return f"layer {layer} by {worker}"

        troupe = Troupe(7, say=say)
        run = await ConductorSolver(MixtureOfAgents(), 13).answer(QUESTION, troupe.context, 1)
        seen = texts(run)
        team = [f"w{n}" for n in range(6)]
        assert [run.rounds[0].workflow.steps[i].worker for i in range(12)] == team * 2
        for index in range(6):
            assert seen[index] == QUESTION.text
            assert all(f"layer 1 by {worker}" in seen[6 + index] for worker in team)
            assert "layer 2" not in seen[6 + index]
        assert all(f"layer 2 by {worker}" in seen[12] for worker in team)
        assert "layer 1" not in seen[12]
        assert run.answer == "layer 3 by w3"

    async def test_prompt_and_temperature_are_the_published_ones(self):
        asked = []

        def say(worker, request):
            asked.append((worker, request))
            return f"by {worker}"

        troupe = Troupe(4, say=say)
        run = await MixtureSolver(MixtureOfAgents(3, 2)).answer(QUESTION, troupe.context, 1)
        assert run.usage.calls == len(asked) == 5
        for number, (worker, request) in enumerate(asked):
            told = [message.text for message in request.messages if message.role is Role.SYSTEM]
            assert told == ([] if number < 2 else [moa.AGGREGATE_AND_SYNTHESIZE])
            proposes = number < 4
            assert request.sampling.temperature == (0.7 if proposes else None)
            assert (worker in {"w0", "w1"}) == proposes
        assert asked[-1][0] == "w3" and run.answer == "by w3"

    def test_thirteen_calls_and_eight(self):
        assert MixtureOfAgents().calls == 13
        assert MixtureOfAgents(2, 7).calls == 8
        assert MixtureOfAgents(2, 7).layered_workflow(POOL).depth == 2
        assert MixtureOfAgents().layered_workflow(POOL).depth == 3

    async def test_fewer_steps_than_it_needs_are_refused_in_a_sentence(self):
        decision = await MixtureOfAgents().plan(
            PlanningContext(question=QUESTION, pool=POOL, max_steps=5)
        )
        assert isinstance(decision, MalformedPlan) and "13 steps where 5" in decision.reason

    def test_a_small_pool_takes_turns(self):
        workers = [step.worker for step in MixtureOfAgents().layered_workflow(Troupe(2).pool).steps]
        assert workers[:6] == ["w0", "w1"] * 3


class TestPipeline:
    def test_roles_go_to_those_who_are_praised_for_them(self):
        flow = fixed_pipeline().build_workflow(POOL)
        assert [step.worker for step in flow.steps] == ["w1", "w0", "w2", "w2", "w0"]
        assert flow.depth == 5

    async def test_the_answer_is_the_last_steps(self):
        troupe = Troupe(3, say=in_turn("plan", "solution", "a fault", "repaired", "Answer: 9"))
        run = await ConductorSolver(fixed_pipeline(), 5).answer(QUESTION, troupe.context, 1)
        assert run.answer == "Answer: 9"
        seen = texts(run)
        assert "a fault" in seen[3] and "solution" in seen[3]
        assert "repaired" in seen[4] and "a fault" not in seen[4]


class TestRoles:
    def test_by_praise_then_by_strength(self):
        assert best_worker_for_role(POOL, PLANNING) == "w1"
        assert best_worker_for_role(POOL, CHECKING) == "w2"
        assert best_worker_for_role(POOL, COMBINING) == "w3"
        assert best_worker_for_role(POOL, JUDGING, exclude=WorkerId("w2")) == "w3"

    def test_where_nothing_is_said_the_strongest_is_taken(self):
        mute = Pool(tuple(replace(worker, description="") for worker in POOL))
        assert best_worker_for_role(mute, CHECKING) == "w0"
        assert best_worker_for_role(mute, CHECKING, exclude=WorkerId("w0")) == "w1"
        alone = Pool((Worker(id=WorkerId("a"), model="m"),))
        assert best_worker_for_role(alone, CHECKING, exclude=WorkerId("a")) == "a"

    def test_blame_is_worse_than_silence(self):
        two = Pool((
            Worker(id=WorkerId("a"), model="m", description="Weak at checking.", strength=0.9),
            Worker(id=WorkerId("b"), model="m", description="Fast.", strength=0.1),
        ))  # fmt: skip
        assert best_worker_for_role(two, CHECKING) == "b"


class TestAblations:
    @given(seed=st.integers(0, 10_000), size=st.integers(1, 7))
    async def test_only_the_one_thing_changes(self, seed, size):
        pool = Troupe(size).pool
        context = PlanningContext(question=QUESTION, pool=pool, seed=seed)
        flow = random_workflow(Random(seed), pool)
        inner = FixedConductor("inner", lambda _: flow)
        plans = [
            await make(inner).plan(context)
            for make in (with_solve_only_subtasks, with_shuffled_access, with_best_worker)
        ]
        plain, shuffled, best = (plan.workflow for plan in plans)  # pyright: ignore[reportAttributeAccessIssue]
        assert {step.subtask for step in plain.steps} == {ablations.SOLVE}
        assert shape(plain, "subtask") == shape(flow, "subtask")
        assert shape(shuffled, "access") == shape(flow, "access")
        given_out = {step.access for step in flow.steps}
        for index, step in enumerate(shuffled.steps):
            kept = {tuple(e for e in access if e < index) for access in given_out}
            assert step.access in kept
        assert {step.worker for step in best.steps} == {pool.ranked()[0].id}
        assert shape(best, "worker") == shape(flow, "worker")

    async def test_some_access_list_does_change(self):
        steps = (
            Step(subtask="a", worker=WorkerId("w0"), access=tuple(range(index))[:1])
            for index in range(5)
        )
        flow = Workflow(tuple(steps))
        changed = 0
        for seed in range(20):
            plan = await with_shuffled_access(FixedConductor("f", lambda _: flow)).plan(
                PlanningContext(question=QUESTION, pool=POOL, seed=seed)
            )
            changed += plan.workflow != flow  # pyright: ignore[reportAttributeAccessIssue]
        assert changed > 5

    async def test_the_draft_and_a_malformed_one_are_kept(self):
        drafted = await RandomConductor().plan(
            PlanningContext(question=QUESTION, pool=POOL, seed=3)
        )
        altered = await with_solve_only_subtasks(RandomConductor()).plan(
            PlanningContext(question=QUESTION, pool=POOL, seed=3)
        )
        assert isinstance(drafted, Plan) and altered.draft == drafted.draft
        narrow = AblatedConductor("x", MixtureOfAgents(), lambda flow, _: Workflow(flow.steps[:1]))
        assert isinstance(
            await narrow.plan(PlanningContext(question=QUESTION, pool=POOL)), MalformedPlan
        )
        assert narrow.name == "moa/3x6, x"


def shape(flow, but):
    blank = {"subtask": "", "access": (), "worker": "w"}[but]
    return [replace(step, **{but: blank}) for step in flow.steps]


async def test_a_prompted_conductor_is_the_best_worker_and_its_draft_is_paid():
    lists = 'model_id = [1]\nsubtasks = ["Solve."]\naccess_list = [[]]'
    troupe = Troupe(
        3, say=lambda w, r: lists if "AVAILABLE LANGUAGE" in r.messages[0].text else "7"
    )
    run = await ConductorSolver(PromptedConductor(troupe.clients)).answer(
        QUESTION, troupe.context, 1
    )
    assert run.answer == "7" and run.steps[0].worker == "w1"
    assert run.conductor_usage.calls == 1 and run.usage.calls == 2
    assert len(troupe.clients[WorkerId("w0")].requests) == 1


def test_the_rehearsals_workers_understand_every_instruction():
    heard = {
        pipeline.PLAN: InstructionKind.PLAN,
        pipeline.SOLVE: InstructionKind.SOLVE,
        pipeline.VERIFY: InstructionKind.VERIFY,
        pipeline.REPAIR: InstructionKind.REPAIR,
        pipeline.ANSWER: InstructionKind.FORMAT,
        self_reflection.FEEDBACK: InstructionKind.VERIFY,
        self_reflection.REVISE: InstructionKind.REPAIR,
        best_of_n.JUDGE: InstructionKind.COMPARE,
        moa.SYNTHESIZE: InstructionKind.COMPARE,
        ablations.SOLVE: InstructionKind.SOLVE,
    }
    assert {text: classify_instruction(text) for text in heard} == heard


def test_workers_keep_their_own_sampling_but_for_the_temperature():
    troupe = Troupe(2)
    cold = replace(troupe.pool.workers[0], sampling=Sampling(temperature=0.1, max_tokens=99))
    context = replace(troupe.context, pool=Pool((cold, troupe.pool.workers[1])))
    warm = context.restrict_to(cold.id).with_sampling(cold.id).pool
    assert [w.sampling for w in warm] == [Sampling(temperature=0.7, max_tokens=99)]
