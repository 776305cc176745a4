"""Samples that are taken for how sure an answer is: fitted by the command, then served as they were measured."""

import json
import re
from dataclasses import replace
from random import Random

import anyio
import pytest

from batuta.config.confidence import read_confidence
from batuta.core import Plan, Reply, Round, WorkerId, Workflow
from batuta.engine.confidence import SampleSetting
from batuta.errors import ConfigError
from batuta.lab.evals.confidence import GradedRun, find_sample_setting, fit_confidence
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Said
from lab.evals.test_fitted_confidence import BAD, GOOD, make_run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
QUESTIONS = 80


def says(body):
    """It knows every second number, and of the others it says now this, now that."""
    number = int(re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1])
    draw = Random(f"{number} {body.get('seed')} {body.get('temperature')}")
    known = number % 2 == 0 or draw.random() < 0.3
    return Said(f"Answer: {number if known else draw.randrange(1000, 9999)}")


def write(folder, url, confidence):
    (folder / "batuta.toml").write_text(
        f'[[workers]]\nid = "a"\nmodel = "model-a"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'
        f'price = {{ input = 1, output = 1 }}\n[models.mine]\nconductor = "single/a"\n[confidence]\n{confidence}\n'
    )
    lines = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))


async def run(command_line, folder, *args):
    env = {"BATUTA_HOME": str(folder / "home"), "HOME": str(folder), "TEST_KEY": KEY}
    return await anyio.to_thread.run_sync(lambda: command_line.run(*args, cwd=folder, env=env))


async def test_what_is_fitted_to_samples_is_served_with_them_and_says_more(tmp_path, command_line):
    fit = ("eval", "--tasks", "own.jsonl", "--limit", str(QUESTIONS), "--systems", "mine")
    async with FakeOpenAI(says, strict_openai=False) as server:
        write(tmp_path, server.url, "samples = 3")
        told = await run(command_line, tmp_path, *fit, "--out", "out", "--check")
        assert f"about {4 * QUESTIONS} calls" in told.stdout and not server.requests
        done = await run(
            command_line, tmp_path, *fit, "--out", "out", "--calibrate", "confidence.json"
        )
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 4 * QUESTIONS
        assert "with 3 samples of the worker that answered" in done.stderr + done.stdout
        [fitted] = json.loads((tmp_path / "confidence.json").read_text())["conductors"].values()
        sampled = fitted["sampled"]
        assert sampled["count"] == 3 and sampled["own"] and sampled["runs"] == QUESTIONS
        assert sampled["measured"]["auroc"] > sampled["without"]["auroc"] + 0.2
        assert sampled["measured"]["brier"] < sampled["without"]["brier"]
        write(tmp_path, server.url, 'samples = 3\nfile = "confidence.json"')
        sure = {}
        for number in (2, 3):
            before = len(server.requests)
            asked = ("ask", f"What is number {number}?", "--model", "mine", "--json")
            said = json.loads((await run(command_line, tmp_path, *asked)).stdout)
            assert len(server.requests) - before == said["usage"]["calls"] == 4
            sure[number] = said["confidence"]
        assert sure[2] > 0.8 and sure[3] < 0.6
        write(tmp_path, server.url, 'samples = 5\nfile = "confidence.json"')
        refused = await run(command_line, tmp_path, *asked)
        assert refused.returncode == 2
        assert "was fitted to 3 samples of the worker that answered" in refused.stderr
        assert "and the settings ask for 5 samples of the worker that answered" in refused.stderr
        write(tmp_path, server.url, 'file = "confidence.json"')
        plain = json.loads((await run(command_line, tmp_path, *asked)).stdout)
        assert plain["usage"]["calls"] == 1 and plain["confidence"] not in sure.values()


def sampled_run(number, worker, sampler, texts, *, right):
    run = make_run(number, worker, f"question {number}", "c")
    plan = Plan(
        Workflow((replace(run.rounds[0].workflow.steps[0], worker=sampler),) * len(texts)),
        purpose="samples",
    )
    steps = tuple(
        replace(
            run.rounds[0].steps[0], index=index, worker=sampler, planned=sampler,
            result=Reply(text=f"Answer: {text}"),
        )
        for index, text in enumerate(texts)
    )  # fmt: skip
    again = Round(decision=plan, workflow=plan.workflow, steps=steps)
    run = replace(run, rounds=(*run.rounds, again))
    assert run.reply is not None
    return GradedRun(run=run, step=run.rounds[0].steps[0], reply=run.reply, right=right)


def many(sampler=None, count=2):
    for number in range(80):
        worker, right = (GOOD, BAD)[number % 2], number % 3 > 0
        texts = [str(number) if right else "x"] * count
        yield sampled_run(number, worker, sampler or worker, texts, right=right)


@pytest.mark.parametrize(
    ("sampler", "setting"),
    [(None, SampleSetting(count=2)), (GOOD, SampleSetting(count=2, worker=GOOD))],
)
def test_how_runs_were_asked_again_is_found_and_only_such_are_served(tmp_path, sampler, setting):
    group = list(many(sampler))
    assert find_sample_setting(group) == setting
    fitted = fit_confidence(group)
    assert fitted.stored.conductors["c"].sampled.measured.auroc > 0.95
    path = tmp_path / "sure.json"
    path.write_text(fitted.text)
    model = read_confidence(path, setting)
    assert model.find_samples("c", GOOD) == setting
    one = group[1]
    assert model.of_answer("c", one.run.rounds, one.reply) > 0.9
    plain = read_confidence(path)
    assert plain.find_samples("c", GOOD) is None
    assert plain.of_answer("c", one.run.rounds, one.reply) < 0.9
    for other in (SampleSetting(count=3, worker=setting.worker), SampleSetting(count=2, worker=WorkerId("eve"))):  # fmt: skip
        with pytest.raises(ConfigError, match="was fitted to 2 samples of"):
            read_confidence(path, other)


def test_a_file_that_was_fitted_without_samples_is_not_served_with_them(tmp_path):
    path = tmp_path / "sure.json"
    bare = [replace(one, run=replace(one.run, rounds=one.run.rounds[:1])) for one in many()]
    path.write_text(fit_confidence(bare).text)
    with pytest.raises(ConfigError, match="was fitted without samples, and the settings ask for"):
        read_confidence(path, SampleSetting(count=2))


def test_runs_that_were_asked_again_too_seldom_are_fitted_without():
    group = list(many())
    few = [*group[:9], *(replace(one, run=replace(one.run, rounds=one.run.rounds[:1])) for one in group[9:])]  # fmt: skip
    fitted = fit_confidence(few)
    assert fitted.stored.conductors["c"].sampled is None
    assert fitted.left_out == ("c, with samples: 9 graded questions, and 40 are needed",)
