"""Served runs, judged through the API, become training questions; nothing else does."""

import json
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import delete
from typer.testing import CliRunner

from batuta.clients import ScriptedClient
from batuta.errors import ConfigError
from batuta.lab import worlds
from batuta.lab.commands.train import app
from batuta.lab.evals.judged_runs import TargetSource, read_judged_runs, read_judged_tasks
from batuta.lab.train.questions import draw_questions, mix_in_runs
from batuta.lab.train.rejection_sampling import run_rejection_sampling
from batuta.lab.train.settings import CurriculumStage
from batuta.store import Store
from batuta.store.models import CONTENTS
from gateway.live_server import Serving, scripted_state, stored
from lab.train.stage import LIBRARIES, SMALL, metrics, settings

pytestmark = LIBRARIES

WORLDLY = worlds.draw_tasks("arithmetic", 3, 41, difficulty=2)
ESSAY = "It depends. " * 20
SAID = {"six times seven": "I multiply.\nAnswer: 42", "seven times seven": "Answer: 47",
        "as JSON": '{"capital": "Paris"}', "capital": "Answer: Paris", "essay": ESSAY}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def say(request):
    text = request.messages[-1].text
    return next((reply for key, reply in SAID.items() if key in text), "Answer: none of it")


async def ask(server, text, *, score=None, comment="", before=(), **body):
    """A question through the API, and its feedback; the run's id."""
    messages = [*before, {"role": "user", "content": text}]
    status, headers, _ = await server.post(
        json={"model": "batuta-mini", "messages": messages, **body}
    )
    assert status == 200
    run = headers["x-batuta-run-id"]
    if score is not None or comment:
        judged = {"score": score, "comment": comment}
        status, _, _ = await server.post(f"/v1/runs/{run}/feedback", json=judged)
        assert status == 200
    return run


async def serving(path, *talks):
    """Serves from a store at `path`, and lets each talk speak with the server."""
    async with Store(path) as store:
        async with Serving(scripted_state({"ada": ScriptedClient(say)}, store=store)) as server:
            for talk in talks:
                await talk(server, store)
        await store.flush()


# -- what a judged run teaches ------------------------------------------------------------


@pytest.mark.anyio
async def test_each_judged_run_teaches_what_can_be_checked(tmp_path):
    async def talk(server, store):
        await ask(server, "What is six times seven?", score=1)
        await ask(server, "And seven times seven?", score=0, comment="No.\nExpected: 49")
        await ask(server, "Name the capital of France.", score=1.0)
        await ask(server, WORLDLY[0].question, score=0)
        await ask(server, "Write an essay.", score=1)
        await ask(server, "Name the capital of Italy.", score=0.4)
        await ask(server, "Name the capital of Norway.", score=0.4, comment=f"Expected: {ESSAY}")
        await ask(server, "Name the capital of Spain.")

    await serving(tmp_path / "runs.db", talk)
    found = await read_judged_runs(str(tmp_path / "runs.db"))
    taught = {task.question: (task.target, task.grader) for task in found.tasks}
    assert taught == {
        "What is six times seven?": ("42", "integer"),
        "And seven times seven?": ("49", "integer"),
        "Name the capital of France.": ("Paris", "exact"),
        WORLDLY[0].question: (WORLDLY[0].target, WORLDLY[0].grader),
    }
    assert found.runs == {
        TargetSource.SCORED: 2, TargetSource.EXPECTED: 1, TargetSource.COMPUTED: 1, TargetSource.UNCHECKED: 3
    }  # fmt: skip
    assert str(found) == (
        "4 questions of 7 judged runs can be learned from; "
        "left out: 3 with a score but no answer to compare others with"
    )


@pytest.mark.anyio
async def test_what_was_not_to_be_kept_is_never_read(tmp_path):
    async def talk(server, store):
        await ask(server, "What is six times seven?", score=1)
        await ask(server, "Not to be stored: the capital?", store=False)
        forgotten = await ask(server, "To be forgotten: the capital?", score=1)
        await store.flush()
        await store.database.execute(delete(CONTENTS).where(CONTENTS.c.run_id == forgotten))
        taken_back = await ask(server, "Taken back: the capital?", score=1)
        await server.post(f"/v1/runs/{taken_back}/feedback", json={"score": None})
        assert len(await stored(store, 3)) == 3

    await serving(tmp_path / "runs.db", talk)
    found = await read_judged_runs(str(tmp_path / "runs.db"))
    assert [task.question for task in found.tasks] == ["What is six times seven?"]
    assert found.runs == {TargetSource.SCORED: 1, TargetSource.UNKEPT: 1}


@pytest.mark.anyio
async def test_a_question_that_is_more_than_its_text_is_left_out(tmp_path):
    async def talk(server, store):
        await ask(server, "What is six times seven?", score=1)
        earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?"}]
        await ask(server, "And the capital?", score=1, before=earlier)
        await ask(server, "The capital, by a tool?", score=1, tools=[TOOL])
        await ask(server, "The capital, as JSON?", score=1, response_format={"type": "json_object"})

    await serving(tmp_path / "runs.db", talk)
    found = await read_judged_runs(str(tmp_path / "runs.db"))
    assert [task.question for task in found.tasks] == ["What is six times seven?"]
    assert found.runs[TargetSource.UNFIT] == 3


@pytest.mark.anyio
async def test_of_several_runs_of_a_question_the_surest_decides_then_the_newest(tmp_path):
    told = "And seven times seven?"

    async def first(server, store):
        await ask(server, told, score=0, comment="expected = 49")
        await ask(server, told, score=1)
        await ask(server, "The capital?", score=1)

    async def later(server, store):
        SAID["capital"] = "Answer: Rome"
        await ask(server, "The capital?", score=1)
        SAID["capital"] = "Answer: Paris"

    await serving(tmp_path / "runs.db", first, later)
    tasks = await read_judged_tasks(str(tmp_path / "runs.db"))
    assert {task.question: task.target for task in tasks} == {told: "49", "The capital?": "Rome"}


@pytest.mark.anyio
async def test_where_there_is_nothing_to_learn_one_sentence_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"there are no runs at .*elsewhere\.db"):
        await read_judged_runs(str(tmp_path / "elsewhere.db"))
    assert not (tmp_path / "elsewhere.db").exists()

    async def unjudged(server, store):
        await ask(server, "What is six times seven?")

    async def scored(server, store):
        await ask(server, "Write an essay.", score=1)

    await serving(tmp_path / "runs.db", unjudged)
    with pytest.raises(ConfigError, match=r"no run in .* was judged; score .*feedback$"):
        await read_judged_runs(str(tmp_path / "runs.db"))
    await serving(tmp_path / "runs.db", scored)
    with pytest.raises(ConfigError, match=r"0 questions of 1 judged runs .* 1 with a score"):
        await read_judged_runs(str(tmp_path / "runs.db"))


# -- the curriculum -----------------------------------------------------------------------

MIX = st.dictionaries(
    st.sampled_from(["rehearsal", "rehearsal:facts", "mine.jsonl", "runs"]),
    st.just(0.0) | st.floats(0.1, 10),
    min_size=1,
).filter(lambda mix: any(mix.values()))


@hypothesis_settings(deadline=None)
@given(st.lists(MIX, min_size=1, max_size=3), st.floats(0.01, 1))
def test_every_stage_asks_that_share_of_runs_and_keeps_its_own_proportions(mixes, share):
    stages = [CurriculumStage(step=10 * at, tasks=mix) for at, mix in enumerate(mixes)]
    told = settings(Path("out")).model_copy(update={"curriculum": stages})
    for old, new in zip(stages, mix_in_runs(told, "runs", share).curriculum, strict=True):
        assert new.step == old.step and sum(new.tasks.values()) == pytest.approx(1)
        others = {name: w for name, w in old.tasks.items() if name != "runs" and w}
        alone = not others or share == 1
        assert new.tasks["runs"] == pytest.approx(1 if alone else share)
        for name, weight in {} if alone else others.items():
            assert new.tasks[name] / (1 - share) == pytest.approx(weight / sum(others.values()))


# -- training -----------------------------------------------------------------------------


@pytest.fixture
def judged(tmp_path):
    """A store with three judged questions of the rehearsal's and an essay."""
    path = tmp_path / "runs.db"

    async def talk(server, store):
        for task in WORLDLY:
            await ask(server, task.question, score=0)
        await ask(server, "Write an essay.", score=1)

    anyio.run(serving, path, talk)
    return path


def test_the_questions_of_a_training_come_from_runs_in_that_share(tmp_path, judged):
    told = settings(tmp_path, optimiser={"steps": 50, "questions": 8, "micro_batch": 32})
    asked = draw_questions(mix_in_runs(told, f"runs:{judged}", 0.25))
    from_runs = [task for task in asked if "served" in task.tags]
    assert len(asked) == 400 and 60 <= len(from_runs) <= 140
    assert {task.question for task in from_runs} == {task.question for task in WORLDLY}


def test_a_training_learns_from_served_runs_alone(tmp_path, judged):
    """The command itself, with the shipped conductor: its workflows are graded by the targets."""
    out, config = tmp_path / "out", tmp_path / "train.toml"
    wanted = {**SMALL, "questions": 3, "group": 6, "micro_batch": 18}
    lines = [f"{key} = {json.dumps(value)}" for key, value in wanted.items()]
    start = json.dumps(str(worlds.shipped_policy_folder()))
    config.write_text(
        f"[policy]\nstart = {start}\n[prompt]\ncompact = true\n[log]\nsample_every = 1\n"
        "[optimiser]\n" + "\n".join(lines)
    )
    command = ["conductor", "--config", str(config), "--out", str(out), "--store", str(judged)]
    done = CliRunner().invoke(app, [*command, "--runs-share", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "3 questions of 4 judged runs can be learned from" in done.stderr
    assert [line["step"] for line in metrics(out)] == [1, 2]
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    targets = {task.question: task.target for task in WORLDLY}
    assert {sample["question"]: sample["target"] for sample in samples}.items() <= targets.items()
    assert all(sample["score"] is not None for sample in samples if sample["steps"])
    assert any(sample["score"] == 1 for sample in samples), "right workflows are seen to be right"
    assert (out / "policy" / "model.safetensors").is_file()


def test_rejection_sampling_holds_out_served_runs(tmp_path, judged, random_policy):
    mix = {f"runs:{judged}": 1.0}
    told = settings(
        tmp_path / "out", policy={"start": str(random_policy)},
        evaluation={"every": 1, "questions": 1, "tasks": mix},
        rejection={"rounds": 1, "random": 1, "questions": 3, "group": 8, "steps": 1, "batch": 2,
                   "tasks": mix},
    )  # fmt: skip
    folder = run_rejection_sampling(told, lambda *_: None)
    assert (folder / "model.safetensors").is_file()


def test_the_command_stops_before_it_spends_where_no_run_was_judged(tmp_path, random_policy):
    config = tmp_path / "train.toml"
    config.write_text(f"[policy]\nstart = {json.dumps(str(random_policy))}\n")
    command = ["conductor", "--config", str(config), "--store", str(tmp_path / "none.db")]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, ConfigError)
    assert not (tmp_path / "out").exists()
