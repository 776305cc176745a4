"""Every router keeps a conductor's law and learns who is good at what."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from routing_made import ADA, BOB, CHEAP, EVE, WORKERS, asked, context, made, pool, unhurried

from batuta.core import AcceptedAnswer, MalformedPlan, Outcome, Plan, Question, Round, Step
from batuta.errors import ConfigError
from batuta.lab import worlds
from batuta.lab.baselines import ConductorSolver, SolverContext
from batuta.lab.baselines.registry import BASELINES
from batuta.lab.baselines.routing import (
    avengers,
    knn,
    masrouter,
    random_routing,
    routellm_mf,
    routerdc,
)
from batuta.lab.baselines.routing.knn import lead_scores
from batuta.lab.baselines.routing.masrouter import (
    MODES,
    CollaborationMode,
    RoleAgent,
    build_mode_workflow,
)
from batuta.lab.baselines.routing.router import fit_embedding

pytestmark = pytest.mark.anyio

FITS = {
    "random-routing": random_routing.fit_random_routing,
    "knn": partial(knn.fit_knn, k=15, features=CHEAP),
    "avengers-pro": partial(avengers.fit_avengers, clusters=6, features=CHEAP),
    "routellm-mf": partial(routellm_mf.fit_routellm, steps=1000, features=CHEAP),
    "routerdc": partial(routerdc.fit_routerdc, steps=60, features=CHEAP),
    "masrouter": partial(masrouter.fit_masrouter, epochs=12, features=CHEAP),
}
LEARNING = [name for name in FITS if name != "random-routing"]
each_router = pytest.mark.parametrize("name", FITS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def routers():
    return {name: fit(made(), seed=0) for name, fit in FITS.items()}


def test_every_published_name_is_tested_here():
    assert set(FITS) == {each.name for each in BASELINES if each.fit_router}
    assert all(each.name.startswith("smoothie") for each in BASELINES if each.fit_chooser)


@pytest.mark.slow
@each_router
async def test_the_workflow_fits_the_pool_and_the_steps(routers, name):
    for members in (pool(), pool("eve", "bob"), pool("ada", "stranger")):
        for most in (1, 2, 5):
            for text in asked(6, 9)[0]:
                plan = await routers[name].plan(context(text, members, max_steps=most))
                assert isinstance(plan, Plan)
                assert len(plan.workflow) <= most
                assert all(step.worker in members for step in plan.workflow.steps)
                assert plan.draft.usage.calls == 0


@pytest.mark.parametrize("name", [name for name in FITS if name != "masrouter"])
async def test_the_worker_gets_the_bare_question(routers, name):
    plan = await routers[name].plan(context("Add 1 and 2."))
    assert plan.workflow.steps == (Step(subtask="", worker=plan.workflow.steps[0].worker),)


@each_router
async def test_a_second_round_lets_the_answer_stand(routers, name):
    previous = (Round(decision=AcceptedAnswer()),)
    decision = await routers[name].plan(context("Add 1 and 2.", previous=previous))
    assert isinstance(decision, AcceptedAnswer)


@pytest.mark.parametrize("name", LEARNING)
async def test_a_pool_of_strangers_is_no_plan_and_the_reason_says_so(routers, name):
    decision = await routers[name].plan(context("Add 1 and 2.", pool("dan", "fay")))
    assert isinstance(decision, MalformedPlan) and "none of the pool" in decision.reason


@pytest.mark.parametrize("name", LEARNING)
async def test_new_questions_go_to_who_is_good_at_their_kind(routers, name):
    texts, sums = asked(40, 77)
    right = 0
    for text, is_sum in zip(texts, sums, strict=True):
        plan = await routers[name].plan(context(text))
        right += plan.workflow.steps[0].worker == (ADA if is_sum else BOB)
    assert right >= 36


@each_router
async def test_the_same_seed_fits_the_same_router(name):
    history, texts = made(40), asked(8, 3)[0]
    few = {"routellm-mf": {"steps": 20}, "routerdc": {"steps": 5}, "masrouter": {"epochs": 1}}
    first, second = (FITS[name](history, seed=4, **few.get(name, {})) for _ in range(2))
    for text in texts:
        plan = context(text, seed=1)
        assert await first.plan(plan) == await second.plan(plan)
    assert first.name == second.name


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
async def test_unknown_scores_are_neither_right_nor_wrong(name):
    history = made()
    gaps = history.scores_qm.copy()
    gaps[::3, 0] = gaps[1::3, 1] = np.nan
    router = FITS[name](replace(history, scores_qm=gaps), seed=0)
    texts, sums = asked(20, 5)
    found = [(await router.plan(context(text))).workflow.steps[0].worker for text in texts]
    assert (
        sum(who == (ADA if is_sum else BOB) for who, is_sum in zip(found, sums, strict=True)) > 16
    )


def test_without_questions_there_is_nothing_to_learn():
    with pytest.raises(ConfigError, match="at least one training question"):
        fit_embedding(made().select(questions=[]))


class TestRandom:
    async def test_all_are_called_about_equally_often_and_a_seed_repeats_itself(self):
        router = random_routing.fit_random_routing(made(4))
        found = [
            (await router.plan(context("Add 1 and 2.", seed=seed))).workflow.steps[0].worker  # pyright: ignore[reportAttributeAccessIssue]
            for seed in (*range(300), *range(300))
        ]
        assert found[:300] == found[300:]
        assert all(70 <= found[:300].count(worker) <= 130 for worker in WORKERS)


class TestKnn:
    @unhurried
    @given(st.integers(0, 200), st.integers(1, 40), st.integers(2, 5))
    def test_who_is_no_better_on_average_is_never_chosen(self, seed, k, m):
        scores = np.random.default_rng(seed).integers(0, 2, (k, m)).astype(float)
        numbers = lead_scores(scores, 0, knn.CONFIDENCE, np.full(m, 0.5))
        chosen = int(numbers.argmax())
        assert numbers[0] == 0
        assert chosen == 0 or scores[:, chosen].mean() > scores[:, 0].mean()

    @pytest.mark.parametrize(("neighbours", "chosen"), [(1, 0), (3, 1), (50, 1)])
    def test_one_neighbour_proves_nothing_and_several_that_agree_do(self, neighbours, chosen):
        scores = np.tile([0.0, 1.0], (neighbours, 1))
        assert lead_scores(scores, 0, knn.CONFIDENCE, np.array([0.6, 0.4])).argmax() == chosen

    def test_the_guard_is_in_standard_errors(self):
        scores = np.repeat([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [20, 27, 3], axis=0)
        means = np.array([0.5, 0.5])
        assert lead_scores(scores, 0, 0.5, means).argmax() == 1
        assert lead_scores(scores, 0, 2.0, means).argmax() == 0

    async def test_without_the_best_the_next_best_is_called(self):
        history = made()
        plain = knn.fit_knn(history, confidence=1e9, features=CHEAP)
        assert plain.workers[int(plain.score("Hm?").argmax())] == history.best_worker()
        order = np.argsort(-history.mean_m())
        without = pool(*(history.workers[m] for m in order[1:]))
        plan = await plain.plan(context("Hm?", without))
        assert plan.workflow.steps[0].worker == history.workers[order[1]]  # pyright: ignore[reportAttributeAccessIssue]


class TestAvengers:
    async def test_cost_alone_takes_the_cheapest(self):
        router = avengers.fit_avengers(made(), alpha=0.0, features=CHEAP)
        for text in asked(6, 1)[0]:
            assert (await router.plan(context(text))).workflow.steps[0].worker == EVE  # pyright: ignore[reportAttributeAccessIssue]

    def test_an_unknown_cost_cannot_be_weighed(self):
        history = made(10)
        costs = history.usd_qm.copy()
        costs[:, 1] = np.nan
        with pytest.raises(ConfigError, match="lacks the cost of some workers"):
            avengers.fit_avengers(replace(history, usd_qm=costs), alpha=0.5, features=CHEAP)

    def test_alpha_is_a_share(self):
        with pytest.raises(ConfigError, match="alpha"):
            avengers.fit_avengers(made(10), alpha=1.5, features=CHEAP)

    def test_the_first_rank_counts_one_and_the_weights_add_up(self):
        numbers = avengers.fit_avengers(made(), clusters=1, features=CHEAP).score("Add 1 and 2.")
        assert sorted(numbers.tolist()) == pytest.approx([1 / 3, 1 / 2, 1])


class TestRouteLlm:
    @torch.no_grad()
    def test_the_hidden_score_is_the_papers(self):
        model = routellm_mf.MatrixFactorization(5, 3, seeded())
        points = torch.randn(4, 5, generator=seeded(1))
        hidden = points[0] @ model.projection + model.bias
        unit = model.workers[1] / model.workers[1].norm()
        assert float(model(points)[0, 1]) == pytest.approx(float(model.last @ (unit * hidden)))

    def test_a_history_of_ties_teaches_nothing(self):
        history = made(10)
        tied = replace(history, scores_qm=np.ones_like(history.scores_qm))
        with pytest.raises(ConfigError, match="beats another"):
            routellm_mf.fit_routellm(tied, features=CHEAP)


class TestRouterDc:
    def loss(self, scores, logits, seed=0):
        """The first loss where the logits are what is given."""
        given = torch.tensor([logits, scores], dtype=torch.float32)
        return float(routerdc.sample_model_loss(given[:1], given[1:], seeded(seed)))

    def test_a_good_negative_and_a_hopeless_positive_have_no_part(self):
        scores = [1.0, 0.9, 0.0, 0.6, 0.7, 0.8]
        assert self.loss(scores, [1, 0, 0, 0, 0, 0]) == self.loss(scores, [1, 0, 0, 9, 9, 0])
        nothing = [0.0] * 6
        assert self.loss(nothing, [3, 1, 2, 0, 5, 4]) == 0

    def test_a_higher_logit_for_a_good_model_and_a_lower_for_a_bad_one_are_less_loss(self):
        scores = [1.0, 0.8, 0.7, 0.2, 0.1, 0.0]
        still = self.loss(scores, [0.0] * 6)
        assert self.loss(scores, [1, 0, 0, 0, 0, 0]) < still < self.loss(scores, [0, 0, 0, 0, 0, 1])

    def test_the_loss_is_the_papers_of_three_models_against_three(self):
        logits = torch.tensor([0.5, 0.1, 0.3, -0.2, 0.4, -0.6])
        scores = [1.0, 0.9, 0.8, 0.2, 0.1, 0.0]
        bad = logits[3:].exp().sum()
        wanted = -sum((one.exp() / (one.exp() + bad)).log() for one in logits[:3])
        assert self.loss(scores, logits.tolist()) == pytest.approx(float(wanted), rel=1e-5)

    def test_of_equal_models_the_lot_says_who_counts(self):
        found = {self.loss([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 5.0, 0.0], seed) for seed in range(9)}
        assert len(found) > 1

    def test_an_unknown_score_is_no_positive_and_no_negative_and_moves_nothing(self):
        logits = torch.zeros(1, 6, requires_grad=True)
        scores = torch.tensor([[1.0, np.nan, 0.8, 0.2, 0.1, np.nan]])
        routerdc.sample_model_loss(logits, scores, seeded()).backward()
        assert logits.grad is not None
        assert logits.grad.isfinite().all() and logits.grad[0, [1, 5]].tolist() == [0, 0]
        routerdc.sample_model_loss(logits, torch.full((1, 6), 0.9), seeded()).backward()
        assert logits.grad.isfinite().all()

    def test_companions_are_of_the_right_clusters(self):
        labels = torch.tensor([0, 0, 0, 1, 1, 1])
        same = labels[:, None] == labels
        apart = routerdc.sample_sample_loss(torch.where(same, 9.0, -9.0), labels, seeded())
        assert float(apart) == pytest.approx(0, abs=1e-6)
        alike = routerdc.sample_sample_loss(torch.where(same, -9.0, 9.0), labels, seeded())
        assert float(alike) == pytest.approx(18 + np.log(3), rel=1e-3)
        for lonely in (torch.zeros(4, dtype=torch.long), torch.arange(6)):
            nothing = torch.ones(len(lonely), len(lonely))
            assert float(routerdc.sample_sample_loss(nothing, lonely, seeded())) == 0


class TestMasRouter:
    agents = st.lists(
        st.builds(RoleAgent, st.integers(0, 5), st.sampled_from(WORKERS)), min_size=1, max_size=6
    )

    @unhurried
    @given(st.sampled_from(MODES), agents, st.integers(1, 9))
    def test_every_mode_is_a_workflow_of_its_agents_within_the_steps(self, mode, agents, most):
        flow = build_mode_workflow(mode, agents, most)
        assert 1 <= len(flow) <= most
        assert {step.worker for step in flow.steps} <= {agent.worker for agent in agents}
        if len(flow) > 1:
            assert flow.steps[-1].access

    def test_a_debate_and_a_reflection_end_with_everything_read(self):
        two = [RoleAgent(0, ADA), RoleAgent(1, BOB)]
        debate = build_mode_workflow(CollaborationMode.DEBATE, two, 5)
        assert [step.access for step in debate.steps] == [(), (), (0, 1), (0, 1, 2)]
        reflection = build_mode_workflow(CollaborationMode.REFLECTION, two, 5)
        assert [step.worker for step in reflection.steps] == [ADA, BOB, ADA]
        assert [step.access for step in reflection.steps] == [(), (0,), (0, 1)]

    async def test_of_a_record_only_one_plain_answer_is_asked(self, routers):
        members = pool(*WORKERS, tags=("recorded",))
        for text in asked(6, 2)[0]:
            plan = await routers["masrouter"].plan(context(text, members))
            assert [step.subtask for step in plan.workflow.steps] == [""]

    async def test_drawn_choices_follow_the_seed(self):
        router = masrouter.fit_masrouter(made(32), epochs=1, sample_choices=True, features=CHEAP)
        plans = [
            await router.plan(context("Add 1 and 2.", seed=seed))
            for seed in (*range(12), *range(12))
        ]
        assert plans[:12] == plans[12:]
        assert len({plan.workflow for plan in plans}) > 3  # pyright: ignore[reportAttributeAccessIssue]

    async def test_only_the_modes_that_were_asked_for_are_written(self):
        router = masrouter.fit_masrouter(
            made(32), epochs=1, modes=(CollaborationMode.COT,), features=CHEAP
        )
        plan = await router.plan(context("Add 1 and 2."))
        assert [step.subtask for step in plan.workflow.steps] == [  # pyright: ignore[reportAttributeAccessIssue]
            "Solve the question step by step."
        ]

    async def test_over_the_rehearsal_its_workflows_are_run(self):
        members = worlds.rehearsal_pool()
        ids = tuple(worker.id for worker in members)[:3]
        history = replace(made(32), workers=ids)
        router = masrouter.fit_masrouter(
            history, epochs=1, modes=(CollaborationMode.REFLECTION,), features=CHEAP
        )
        context = SolverContext(pool=members, clients=worlds.rehearsal_clients(time_scale=0.0))
        question = Question.of("Compute the result: begin at 45; square it; double it.")
        run = await ConductorSolver(router).answer(question, context, 1)
        assert run.outcome is Outcome.ANSWERED and run.header.conductor == "masrouter"
        assert [step.index for step in run.steps][:3] == [0, 1, 2] and len(run.steps) <= 5
        assert run.usage.calls == len(run.steps)

    def test_the_number_of_agents_follows_what_it_earns(self):
        """Three right with credit 0.6 each are a majority, which earns 1; with 0.4 it earns 0."""
        texts, _ = asked(40, 3)
        most = {}
        for credit in (0.4, 0.6):
            history = replace(made(), scores_qm=np.full((120, 3), credit, np.float32))
            fitted = masrouter.fit_masrouter(
                history, epochs=10, modes=(CollaborationMode.DEBATE,), features=CHEAP
            )
            points, everyone = (
                torch.from_numpy(fitted.embed(texts)),
                torch.ones(3, dtype=torch.bool),
            )
            found = fitted.model(points, fitted.modes, everyone, None)
            most[credit] = float(found.agents_b.float().mean())
        assert most[0.4] < 1.5 and most[0.6] > 2.5

    @unhurried
    @given(st.integers(0, 99))
    def test_what_is_drawn_has_the_probability_that_it_is_said_to_have(self, seed):
        model = masrouter.SystemModel(5, 2, 4, seeded(seed))
        there = torch.tensor([True, False, True, True])
        with torch.no_grad():
            found = model(torch.zeros(50, 5), (CollaborationMode.COT,), there, seeded(seed))
        assert not (found.models_ba == 1).any() and (found.agents_b == 1).all()
        assert {MODES[int(mode)] for mode in found.modes_b} == {CollaborationMode.COT}
        assert found.log_p_b.isfinite().all() and (found.log_p_b <= 0).all()

    def test_the_utility_of_one_is_recorded_and_that_of_several_a_majority(self):
        found = masrouter.SystemChoices(
            classes_bt=torch.zeros(4, 1),
            variational=torch.zeros(()),
            modes_b=torch.zeros(4, dtype=torch.long),
            agents_b=torch.tensor([1, 1, 3, 2]),
            roles_ba=torch.zeros(4, 3, dtype=torch.long),
            models_ba=torch.tensor([[0, 0, 0], [2, 0, 0], [0, 0, 1], [0, 1, 0]]),
            log_p_b=torch.zeros(4),
        )
        scores = torch.tensor([[1.0, 0.0, 0.25]] * 4)
        assert masrouter.system_utility(scores, found).tolist() == [1.0, 0.25, 1.0, 0.5]
        unknown = torch.full((4, 3), np.nan)
        assert masrouter.system_utility(unknown, found)[:2].tolist() == [0, 0]
