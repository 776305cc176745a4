"""The search: on which questions it screens, and whom it still runs when it tries nothing new."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import WorkerId
from batuta.engine.confidence import SampleSetting
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneSettings
from batuta.lab.tune.grouping import ease_bounds
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.lab.tune.opening import TuneQuestions, forecast_tuning
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.search import Search
from batuta.lab.tune.search_settings import Arena, SearchSettings
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.stages import TuneStage
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import CHECKS, grade

ADA, BEN = WorkerId("ada"), WorkerId("ben")
TASKS = CHECKS.tasks(240)


@given(st.integers(1, 200), st.integers(2, 6), st.integers(0, 10**6), st.integers(1, 40))
def test_every_level_of_a_divided_group_has_half_its_share_of_the_questions(
    many, levels, seed, different
):
    rng = np.random.default_rng(seed)
    ease_n = rng.normal(size=different)[rng.integers(different, size=many)].astype(np.float32)
    (bounds,) = ease_bounds(np.zeros(many, np.intp), ease_n, 1, levels)
    level_n = (ease_n[:, None] >= bounds).sum(axis=1)
    there = np.bincount(level_n, minlength=levels)
    assert there.min() >= many / levels / 2 or there[-1] == many


def test_a_group_whose_questions_are_nearly_all_equally_easy_is_not_divided():
    ease_n = np.array([0.1] * 8 + [0.5] * 120, np.float32)
    assert np.isneginf(ease_bounds(np.zeros(128, np.intp), ease_n, 1, 6)).all()


def open_search(cells, levels):
    """A search over such cells, whose single workers have been asked everything."""
    runner = CandidateRunner(
        CHECKS.pool, CHECKS.clients(), grade, CallMeter(ASSUMED_PRICE), unknown=ASSUMED_PRICE
    )
    groups = {group for group, _ in cells}
    search = Search(
        Arena(levels=levels, cells=cells, weights=dict.fromkeys(groups, 1 / len(groups))),
        runner,
        workers=CHECKS.workers,
        settings=SearchSettings(),
        max_steps=5,
        usd=dict.fromkeys(CHECKS.workers, 0.0),
    )
    return search, runner


async def test_a_group_is_screened_on_as_many_questions_whether_it_is_divided_or_not():
    bills, roads = ([t for t in TASKS if t.tags[0] == kind] for kind in ("bills", "roads"))
    search, runner = open_search({(0, 0): bills[:40], (0, 1): bills[40:], (1, 1): roads}, 2)
    singles = [Candidate.single(who) for who in CHECKS.workers]
    assert await runner.run_all((task, one) for task in TASKS[:60] for one in singles)
    search.take_over(TASKS[:60], singles)
    assert await search.screen(8, lambda _: True)
    for group in (0, 1):
        runs = {search.count_runs(one, group) for one in search.tried_in(group) if len(one) > 1}
        assert runs == {8}


async def test_phrasings_of_one_workflow_are_not_run_in_the_place_of_other_workflows_at_the_end():
    search, runner = open_search({(0, 0): list(TASKS)}, 1)
    alike = [
        Candidate((CandidateStep(StepRole.SOLVE, ADA, one), CandidateStep(StepRole.CHECK, BEN, other)))
        for one in (0, 1) for other in (0, 1)
    ]  # fmt: skip
    known = [*alike, *(Candidate.single(who) for who in CHECKS.workers)]
    assert await runner.run_all((task, one) for task in TASKS[:30] for one in known)
    search.take_over(TASKS[:30], known)
    search.stop_exploring()
    before = {one: search.count_runs(one, 0) for one in known}
    for _ in range(3):
        assert await search.run_round()
    ran = {one for one in known if search.count_runs(one, 0) > before[one]}
    assert len(ran & set(alike)) == 1 and len(ran) > 1


def test_where_nothing_is_judged_those_questions_serve_the_selection():
    parts = split_questions(TASKS, task_family)
    without = parts.unjudged()
    assert not without.judgement and without.search == parts.search
    assert without.selection == (*parts.selection, *parts.judgement)
    assert without.finalists == parts.finalists


def test_a_forecast_of_a_tuning_can_be_printed_as_json():
    parts = split_questions(TASKS, task_family).unjudged()
    settings = TuneSettings(allowance=Allowance(calls=900), last=TuneStage.SELECT)
    questions = TuneQuestions(name="checks", tasks=TASKS, grade=grade)
    forecast = forecast_tuning(CHECKS.pool, questions, parts, settings)
    told = json.loads(orjson.dumps(forecast, default=str))
    assert list(told["stages_at_most"]) == ["calibrate", "search", "select"]
    assert told["questions"]["judgement"] == 0


@pytest.mark.parametrize("calls", [40, 900, 100_000])
def test_a_forecast_has_no_more_calls_than_the_budget(calls):
    """Also where questions are asked again, for which there is only what the stages leave."""
    parts = split_questions(TASKS, task_family)
    settings = TuneSettings(allowance=Allowance(calls=calls), samples=SampleSetting(count=5))
    questions = TuneQuestions(name="checks", tasks=TASKS, grade=grade)
    most = forecast_tuning(CHECKS.pool, questions, parts, settings)["stages_at_most"]
    assert 0 < most["samples"]["calls"] <= settings.sample_calls(parts)
    assert sum(stage["calls"] for stage in most.values()) <= calls + len(most) / 2


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_workflow_from_another_process_is_found_under_this_ones_hash(seed):
    one = Candidate((CandidateStep(StepRole.SOLVE, ADA), CandidateStep(StepRole.CHECK, BEN)))
    program = (
        "import pickle, sys\n"
        "one = pickle.loads(sys.stdin.buffer.read())\n"
        "print(type(one)(one.steps, one.stops) in {one})"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(one), capture_output=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )  # fmt: skip
    assert said.stdout.strip() == b"True"
