"""A tuning says how sure the answers of what it wrote are, and pays nothing for it."""

import pytest

from batuta.conductors.workflow_selector import open_workflow_selector
from batuta.config.confidence import read_confidence
from batuta.core import Pool, Question
from batuta.engine import RunSettings, conduct
from batuta.engine.confidence import SampleSetting
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.fitted_confidence import fit_tuned_confidence
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.recommend import with_confidence
from batuta.lab.tune.report import describe_tuning, render_markdown, selectors_of, write_results
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.tuning import run_tuning
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import EXPERTS, grade

pytestmark = pytest.mark.anyio


async def test_what_is_served_says_how_sure_it_is_and_no_call_is_made_for_it(tmp_path):
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(EXPERTS.pool, EXPERTS.clients(), grade, meter, unknown=ASSUMED_PRICE)
    parts = split_questions(EXPERTS.tasks(600), task_family)
    settings = TuneSettings(allowance=Allowance(calls=900))
    context = TuneContext(
        parts=parts, family=task_family, runner=runner, settings=settings,
        used_minutes=lambda: 0.0,
    )  # fmt: skip
    result = await run_tuning(context)
    found = describe_tuning(result, parts, settings, meter)
    paid = meter.calls, meter.usd
    served = {one.name: system for system, one in selectors_of(found, result).values()}
    fitted = await fit_tuned_confidence(context, served)
    assert (meter.calls, meter.usd) == paid and fitted.stored.conductors
    write_results(tmp_path, found, result=result, tasks=parts.search, settings_text=None)
    selector = open_workflow_selector(tmp_path / "selector")
    one = fitted.stored.conductors[selector.name]
    judged = next(each for each in found["judged"] if each["name"] == "ultra")
    assert one.runs >= judged["questions"] > 0
    told = render_markdown(found | {"confidence": fitted.describe()})
    assert f"{selector.name}: {one.runs} runs" in told
    (tmp_path / "confidence.json").write_text(fitted.text)
    ended = await conduct(
        Question.of(EXPERTS.tasks(1, seed=9)[0].question),
        selector,
        Pool(tuple(EXPERTS.pool)),
        EXPERTS.clients(),
        settings=RunSettings(confidence=read_confidence(tmp_path / "confidence.json")),
    )
    assert ended.confidence is not None and 0 < ended.confidence < 1


@pytest.mark.slow
async def test_where_the_settings_ask_again_the_budget_pays_for_it_and_both_are_fitted():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(EXPERTS.pool, EXPERTS.clients(), grade, meter, unknown=ASSUMED_PRICE)
    parts = split_questions(EXPERTS.tasks(600), task_family)
    samples = SampleSetting(count=2)
    settings = TuneSettings(allowance=Allowance(calls=1500), samples=samples)
    context = TuneContext(
        parts=parts, family=task_family, runner=runner, settings=settings,
        used_minutes=lambda: 0.0,
    )  # fmt: skip
    result = await run_tuning(context)
    found = describe_tuning(result, parts, settings, meter)
    before = meter.calls
    served = {one.name: system for system, one in selectors_of(found, result).values()}
    fitted = await fit_tuned_confidence(context, served)
    assert before < meter.calls <= 1500 + samples.count * runner.concurrency
    sampled = [one.sampled for one in fitted.stored.conductors.values() if one.sampled]
    assert sampled and all(one.is_of(samples) for one in sampled)
    assert any(", with 2 samples of the worker that answered" in one for one in fitted.describe())


def test_settings_that_name_a_file_of_their_own_keep_it():
    assert with_confidence("[pool]\n", "confidence.json").endswith(
        '[confidence]\nfile = "confidence.json"\n'
    )
    own = '[confidence]\nfile = "mine.json"\n'
    assert with_confidence(own, "confidence.json") == own
