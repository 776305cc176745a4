"""A tuning says how sure the answers of what it wrote are, and pays nothing for it."""

import json
import re

import anyio
import pytest

from batuta.clients import HttpTransport
from batuta.conductors.workflow_selector import open_workflow_selector
from batuta.config.confidence import read_confidence
from batuta.config.load import load_config
from batuta.core import Pool, Question
from batuta.engine import RunSettings, conduct
from batuta.engine.confidence import SampleSetting
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.fitted_confidence import fit_tuned_confidence, pay_samples
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.recommend import with_confidence
from batuta.lab.tune.report import (
    describe_tuning,
    render_markdown,
    saved_systems,
    selectors_of,
    write_results,
)
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.tuning import run_tuning
from batuta.usage import ASSUMED_PRICE
from fakes.openai import FakeOpenAI
from fakes.server import KEY
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
    before = meter.calls
    await pay_samples(context, saved_systems(result).values())
    assert before < meter.calls <= 1500
    found = describe_tuning(result, parts, settings, meter)
    served = {one.name: system for system, one in selectors_of(found, result).values()}
    fitted = await fit_tuned_confidence(context, served)
    assert found["spent"]["calls"] == meter.calls
    sampled = [one.sampled for one in fitted.stored.conductors.values() if one.sampled]
    assert sampled and all(one.is_of(samples) for one in sampled)
    assert any(", with 2 samples of the worker that answered" in one for one in fitted.describe())


def test_settings_that_name_a_file_of_their_own_keep_it():
    assert with_confidence("[pool]\n", "confidence.json").endswith(
        '[confidence]\nfile = "confidence.json"\n'
    )
    own = '[confidence]\nfile = "mine.json"\n'
    assert with_confidence(own, "confidence.json") == own
    sampled = "[confidence]\nsamples = 3\n\n[mini]\n"
    assert with_confidence(sampled, "confidence.json") == sampled.replace(
        "]\ns", ']\nfile = "confidence.json"\ns'
    )


def reply_to(body):
    """One worker knows even numbers, the other odd ones."""
    number = int(re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1])
    knows = number % 2 == (body["model"] == "model-b")
    return f"Answer: {number if knows else -1}"


async def test_calls_that_ask_again_are_reported_and_what_they_fitted_is_served(
    tmp_path, command_line
):
    env = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TEST_KEY": KEY}
    lines = ({"question": f"What is number {n}?", "answer": n} for n in range(160))
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    async with FakeOpenAI(reply_to, strict_openai=False) as server:
        workers = (
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{server.url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1.0, output = 1.0 }}\n'
            for name in "ab"
        )
        text = "\n".join((*workers, "[confidence]\nsamples = 1\n"))
        (tmp_path / "pool.toml").write_text(text)
        args = ("tune", "--pool", "pool.toml", "--tasks", "own.jsonl", "--no-rewrite",
                "--calls", "600", "--out", "out")  # fmt: skip
        done = await anyio.to_thread.run_sync(
            lambda: command_line.run(*args, cwd=tmp_path, env=env)
        )
        assert done.returncode == 0, done.stderr
        made = len(server.requests)
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert any("with 1 sample" in line for line in report["confidence"])
    assert report["spent"]["calls"] == made <= 600
    assert f"spent: {made} calls" in done.stdout and "count against" not in done.stdout
    async with HttpTransport() as http:
        tuned = await load_config(
            http, pool=str(tmp_path / "out" / "batuta.toml"), environ={"TEST_KEY": KEY}
        )
    assert tuned.confidence is not None and tuned.confidence.samples == SampleSetting(count=1)
    assert any(one.sampled for one in tuned.confidence.conductors.values())
