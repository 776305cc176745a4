"""What a judgement says: how often it errs, when it looks, and what is recommended."""

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Pool, Worker, WorkerId
from batuta.errors import ModelNotFoundError
from batuta.lab.evals.stats import Difference, mcnemar_p_value
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.calibrate import MeasuredShare, WorkerCard
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.decision import recommend_systems
from batuta.lab.tune.expected_gain import SURE_ENOUGH, ExpectedGain, expect_gain
from batuta.lab.tune.judge import MARGIN, Comparison, Verdict, least_difference, verdict_of
from batuta.lab.tune.judgement import LEVELS, divide_into_looks
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.measuring import run_systems
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.search import spread_evenly
from batuta.lab.tune.spending import Allowance
from batuta.usage import ASSUMED_PRICE
from lab.tune.test_call_limit import GROUPING
from lab.tune.test_tuning import tune, tune_once
from lab.tune.worlds import _TASK, CHECKS, PRICE, VOTES, grade, roll, truth

CALLS = 2000
"""Of the tunings that several tests look at."""
JUDGEMENTS = 4000
ALPHA = 0.05


def draw_judgement(rng, questions, difference, disputed):
    """How the first of two systems did on each question, beside the second: 1, 0 or -1."""
    won = (disputed + difference) / 2
    return rng.choice([1.0, 0.0, -1.0], size=questions, p=[won, 1 - disputed, disputed - won])


toss_p_value = lru_cache(maxsize=None)(mcnemar_p_value)


def judge(deltas, saved=1.0):
    """The verdict of one comparison, as a judgement comes to it look by look."""
    for until, level in divide_into_looks(len(deltas)):
        seen = deltas[:until]
        wins, losses = int((seen > 0).sum()), int((seen < 0).sum())
        p = toss_p_value(wins, losses)
        gap = Difference(
            questions=until, mean=float(seen.mean()), low=0.0, high=0.0, p=p, test="McNemar", p_corrected=p
        )  # fmt: skip
        verdict = verdict_of(gap if wins + losses else None, seen, saved, alphas=(level, level / 2))
        if verdict in {Verdict.BETTER, Verdict.WORSE, Verdict.CHEAPER}:
            break
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("questions", [40, 75, 150])
@pytest.mark.parametrize("difference", [-0.04, -0.02, 0.0, 0.03])
@pytest.mark.parametrize("disputed", [0.04, 0.1, 0.3])
def test_each_verdict_errs_no_oftener_than_is_claimed(questions, difference, disputed):
    rng = np.random.default_rng([questions, round(1000 * (difference + 1)), round(1000 * disputed)])
    found = [judge(draw_judgement(rng, questions, difference, disputed)) for _ in range(JUDGEMENTS)]
    most = ALPHA + 3 * (ALPHA * (1 - ALPHA) / JUDGEMENTS) ** 0.5
    rates = {verdict: found.count(verdict) / JUDGEMENTS for verdict in set(found)}
    if difference <= 0:
        assert rates.get(Verdict.BETTER, 0) <= most, rates
    if difference >= 0:
        assert rates.get(Verdict.WORSE, 0) <= most, rates
    if difference <= -MARGIN:
        assert rates.get(Verdict.CHEAPER, 0) <= most, rates


def test_ties_on_ten_questions_prove_nothing():
    ties, alphas = np.zeros(10), (ALPHA, ALPHA / 2)
    assert verdict_of(None, ties, 1.0, alphas=alphas) is Verdict.UNDECIDED
    assert verdict_of(None, ties, 0.0, alphas=alphas) is Verdict.SAME
    assert verdict_of(None, np.zeros(97), 1.0, alphas=alphas) is Verdict.CHEAPER
    assert least_difference(np.zeros(95), ALPHA / 2) < -MARGIN
    assert least_difference(np.zeros(97), ALPHA / 2) > -MARGIN


def test_the_looks_together_have_the_level_that_is_claimed():
    """The levels of O'Brien and Fleming, checked by a walk of normal steps."""
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((200_000, len(LEVELS))).cumsum(axis=1)
    z = walk / np.sqrt(np.arange(1, len(LEVELS) + 1))
    bounds = np.array([NormalDist().inv_cdf(1 - level / 2) for level in LEVELS])
    assert (np.abs(z) > bounds).any(axis=1).mean() == pytest.approx(ALPHA, abs=0.002)


@given(st.integers(0, 400))
def test_looks_grow_and_the_last_one_sees_every_question(questions):
    looks = list(divide_into_looks(questions))
    assert [until for until, _ in looks] == sorted({until for until, _ in looks})
    assert not questions or looks[-1] == (questions, LEVELS[-1])


GAINS = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=60)


@given(GAINS, st.floats(-0.3, 0.3))
def test_a_gain_is_shrunk_towards_what_was_believed_and_one_more_win_never_lowers_it(gains, lead):
    found = expect_gain(gains, lead)
    bounds = sorted([lead / 2, sum(gains) / (len(gains) + 2)])
    assert bounds[0] - 1e-9 <= found.mean <= bounds[1] + 1e-9
    assert 0 <= found.probability <= 1 and found.questions == len(gains)
    better = expect_gain([*gains, 1.0], 0.0)
    assert better.mean >= expect_gain([*gains, -1.0], 0.0).mean


def advice_of(ultra, mini, *, verdict=Verdict.UNDECIDED, between=0.0, only_proven=False, beaten=""):
    """What is recommended where that is expected of the two systems."""
    share = MeasuredShare(questions=90, share=0.5, low=0.4, high=0.6, shrunk=0.5)
    card = WorkerCard(worker=WorkerId("ada"), overall=share, by_group=(share,), usd=0.01, seconds=1.0, failed=0)  # fmt: skip
    comparisons = [
        Comparison(nominee=name, opponent=opponent, verdict=found, questions=40, difference=0.15, low=0.0,
                   high=0.3, p=0.06, p_corrected=0.12, detectable=0.2, usd_saved=-0.01)
        for name, opponent, found in (
            ("ultra", "best single", verdict),
            ("mini", "best single", verdict),
            ("ultra", "mini", Verdict.BETTER if beaten == "mini" else Verdict.UNDECIDED),
        )
    ]  # fmt: skip

    def gain(mean, probability):
        return ExpectedGain(mean=mean, probability=probability, questions=180)

    result = TuneResult(
        cards=(card,), left_out=(), grouping=GROUPING, comparisons=tuple(comparisons),
        pool=Pool((Worker(id=WorkerId("ada"), model="ada", strength=0.5),)),
        expected={("ultra", "best single"): gain(*ultra), ("mini", "best single"): gain(*mini),
                  ("ultra", "mini"): gain(between, 0.5 + between)},
    )  # fmt: skip
    return recommend_systems(result, only_proven=only_proven)


def test_what_is_expected_to_be_worth_most_is_recommended_though_nothing_is_proven():
    advice = advice_of((0.14, 0.97), (0.0, 0.5), between=0.14)
    assert (advice["ultra"], advice["mini"]) == ("selector", None)
    assert "+14.0 points" in advice["why"][0] and "probability of a gain 97 %" in advice["why"][0]
    assert any(line.startswith("Proof, batuta-ultra") and "none" in line for line in advice["why"])


def test_only_what_is_proven_is_recommended_where_that_is_wanted():
    assert advice_of((0.14, 0.97), (0.0, 0.5), only_proven=True)["ultra"] is None
    proven = advice_of((0.14, 0.97), (0.0, 0.5), only_proven=True, verdict=Verdict.BETTER)
    assert proven["ultra"] == "selector"


def test_what_is_proven_against_single_workers_by_group_alone_is_not_proven():
    proven = advice_of((0.14, 0.97), (0.0, 0.5), only_proven=True, beaten="mini")
    assert proven["ultra"] is None


def test_below_eighty_per_cent_it_is_the_best_single_worker():
    advice = advice_of((0.02, SURE_ENOUGH - 0.01), (-0.01, 0.3))
    assert (advice["ultra"], advice["mini"], advice["best"]) == (None, None, "ada")


def test_single_workers_answer_as_ultra_where_they_are_worth_more_than_workflows():
    advice = advice_of((0.05, 0.95), (0.08, 0.97), between=-0.03)
    assert (advice["ultra"], advice["mini"]) == ("selector-mini", "selector-mini")


@pytest.mark.slow
async def test_what_is_deployed_in_a_group_was_run_on_enough_of_its_questions():
    for world in (CHECKS, VOTES):
        result, *_ = await tune_once(world, CALLS)
        table, system = result.table, result.nominees["ultra"]
        assert result.systems
        for one in (*result.systems, system):
            for group, levels in enumerate(one.selector.rank_glw[:, :, 0]):
                for place in levels:
                    candidate = one.library[int(place)]
                    runs = table.runs_gw[group, table.library.index(candidate)]
                    assert len(candidate) == 1 or runs >= 8, (world.name, one.name, str(candidate))


async def test_a_workflow_that_was_never_run_in_a_group_does_not_win_there_whatever_is_expected_of_it():
    result, *_ = await tune_once(CHECKS, CALLS)
    table = result.table
    worth, runs = table.worth_gwl.copy(), table.runs_gw.copy()
    unknown = [
        (g, w) for g, w in zip(*np.nonzero(runs < 8), strict=True) if len(table.library[w]) > 1
    ]
    assert unknown, "each group has workflows that only another group has tried"
    for group, place in unknown:
        assert (worth[group, place] < worth[group].max(axis=0) - 1).all()


async def test_the_best_single_worker_is_measured_again_on_questions_kept_for_that():
    result, meter, parts, _ = await tune_once(VOTES, CALLS)
    assert meter.calls <= CALLS
    best = result.pool.ranked()[0]
    calibrated = {card.worker: card.overall.questions for card in result.cards}
    kept = len(parts.selection) + len(parts.finalists)
    strengths = {worker.id: worker.strength or 0.0 for worker in result.pool}
    shares = {card.worker: card.overall.share or 0.0 for card in result.cards}
    assert any(strengths[who] != round(shares[who], 6) for who in shares), (
        "measured on more questions"
    )
    assert best.strength == max(strengths.values()) and kept > 80 and min(calibrated.values()) > 20


async def test_samples_of_a_worker_whose_errors_repeat_are_no_opponent():
    result, *_ = await tune_once(CHECKS, CALLS)
    opponents = {one.opponent for one in result.comparisons if one.nominee == "ultra"}
    assert opponents <= {"best single", "mini"}
    assert not any(one.name.startswith("self-consistency") for one in result.judged)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 80))
def test_so_many_questions_of_each_cell_are_enough_together(sizes, wanted):
    each = spread_evenly(wanted, sizes)
    run = [min(each, size) for size in sizes]
    assert sum(run) >= min(wanted, sum(sizes))
    assert not each or sum(min(each - 1, size) for size in sizes) < min(wanted, sum(sizes))


async def test_what_was_run_stays_known_where_the_money_has_gone_since():
    """The clock may pass a limit between two looks; what was paid for is not lost by it."""
    minutes = [0.0]
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(VOTES.pool, VOTES.clients(), grade, meter, unknown=ASSUMED_PRICE)
    tasks = VOTES.tasks(60)
    context = TuneContext(
        parts=split_questions(tasks, task_family), family=task_family, runner=runner,
        settings=TuneSettings(allowance=Allowance(minutes=1.0)), used_minutes=lambda: minutes[0],
    )  # fmt: skip
    systems = {"ada": dict.fromkeys((task.id for task in tasks), Candidate.single(WorkerId("ada")))}
    asked = await run_systems(context, tasks[:20], systems, 0.9)
    assert len(asked) == 20
    minutes[0] = 2.0
    assert await run_systems(context, tasks[:30], systems, 0.9) == asked


@pytest.mark.slow
async def test_a_worker_that_hardly_ever_answers_is_not_the_best_single_worker():
    """It is right whenever it answers, and fails nine times of ten."""

    def answer(request):
        text = request.messages[-1].text
        if roll("rarely", text) < 0.9:
            raise ModelNotFoundError("no such model")
        task = _TASK.search(text)
        return f"Answer: {truth(task[1] if task else text.strip())}"

    pool = Pool((*VOTES.pool, Worker(id=WorkerId("rare"), model="rare", price=PRICE)))
    clients = {**VOTES.clients(), WorkerId("rare"): ScriptedClient(answer)}
    result, *_ = await tune(VOTES, 1500, pool=pool, clients=clients)
    assert result.left_out == ("rare",)
    assert result.pool.ranked()[0].id != "rare" and result.comparisons
