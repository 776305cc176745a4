"""Evaluation while training: what is kept back stays back, and the best checkpoint is the result."""

import json
import shutil

import pytest
import torch
from aiohttp import web
from anyio import to_thread
from safetensors.torch import load_file

from batuta.errors import ConfigError, SourceError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.conductor_training import (
    find_checkpoint,
    last_checkpoint,
    train_conductor,
    wandb_environment,
)
from batuta.lab.train.evaluation import HeldResult, describe_evaluation, sum_up_held
from batuta.lab.train.hub import hub_problem, upload_policy
from batuta.lab.train.preflight import check_training
from batuta.lab.train.questions import draw_held_out, draw_mix, draw_questions, held_out_keys
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import HubSettings
from batuta.lab.train.stopping import TrainingStoppedError
from batuta.lab.train.trainer import grpo_config
from lab.train.loopback import questions_file
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES


# -- what is kept back --------------------------------------------------------------------


def asked_twice(folder):
    """Sums, each a second time in capitals and with other punctuation."""
    file = questions_file(folder)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines += [{**line, "question": line["question"].upper().replace("?", " ??")} for line in lines]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_what_is_kept_back_is_not_learned_in_other_letters_either(tmp_path):
    told = settings(
        tmp_path,
        optimiser={"steps": 60, "questions": 4},
        curriculum=[{"tasks": {str(asked_twice(tmp_path)): 1.0}}],
        evaluation={"every": 10, "questions": 12},
    )
    held, learned = draw_held_out(told), draw_questions(told)
    keys = {text_key(task.question) for task in held}
    assert len(held) == len(keys) == 12 and len(learned) == 240
    assert not keys & {text_key(task.question) for task in learned}
    assert len({text_key(task.question) for task in learned}) == 40 - 12, "all others are learned"
    assert draw_held_out(told) == held, "the same ones after a resumption"
    sampled = draw_mix(told.curriculum[0].tasks, 200, 3, held_out_keys(told))
    assert not keys & {text_key(task.question) for task in sampled}, "by rejection sampling"


def test_a_world_that_makes_its_questions_makes_others(tmp_path):
    told = settings(tmp_path, optimiser={"steps": 100, "questions": 4}, evaluation={"every": 5})
    keys = held_out_keys(told)
    learned = draw_questions(told)
    assert len(keys) == 50 and len(learned) == 400
    assert not keys & {text_key(task.question) for task in learned}


def test_without_an_evaluation_the_questions_are_what_they_were(tmp_path):
    told = settings(tmp_path, curriculum=[{"tasks": {str(questions_file(tmp_path)): 1.0}}])
    assert draw_held_out(told) == []
    mix = told.curriculum[0].tasks
    assert draw_questions(told) == draw_mix(mix, 4, told.seed * 7919)


def test_questions_that_are_all_kept_back_leave_nothing_to_learn(tmp_path):
    told = settings(
        tmp_path,
        curriculum=[{"tasks": {str(questions_file(tmp_path, 10)): 1.0}}],
        evaluation={"every": 5, "questions": 10},
    )
    with pytest.raises(ConfigError, match=r"no question left to learn from.*evaluation.questions"):
        draw_questions(told)


def result(right, reward, *, valid=True, steps=1, usd: float | None = 0.5):
    return HeldResult(right=right, reward=reward, valid=valid, steps=steps, usd=usd, refused=False)


def test_outages_are_not_counted_and_nothing_counted_is_not_zero():
    found = sum_up_held([result(1.0, 1.0), result(0.0, 0.5, steps=3), result(None, None)])
    assert (found["right"], found["reward"], found["counted"], found["questions"]) == (
        0.5,
        0.75,
        2,
        3,
    )
    assert found["usd"] == 1.5
    assert sum_up_held([result(1.0, 1.0), result(1.0, 1.0, usd=None)])["usd"] is None
    none = sum_up_held([result(None, None)])
    assert none["right"] is none["reward"] is None


# -- while it learns ----------------------------------------------------------------------


def told(folder, policy, *, metric="reward", log=None, evaluation=None, steps=6, **sections):
    return settings(
        folder,
        optimiser={"steps": steps, "questions": 4, "micro_batch": 16, "learning_rate": 3e-2},
        policy={"start": str(policy)},
        evaluation={"every": 2, "questions": 24, "metric": metric, **(evaluation or {})},
        log={"checkpoint_every": 1, "keep_checkpoints": 2, "sample_every": 1, **(log or {})},
        **sections,
    )


def evaluated(folder):
    return [json.loads(x) for x in (folder / "evaluation.jsonl").read_text().splitlines()]


def trained(told_, *, resume=False, checkpoint=None):
    train_conductor(told_, ["pytest"], lambda line: None, resume=resume, checkpoint=checkpoint)
    return load_file(told_.output / "policy" / "model.safetensors")


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["own", "transformers"])
def test_the_best_checkpoint_is_kept_and_is_the_result(tmp_path, learned, sampler):
    """With so great a learning rate a good policy gets worse: the last one is not the best."""
    told_ = told(tmp_path, learned / "policy")
    told_ = told_.model_copy(update={"optimiser": told_.optimiser.model_copy(update={"sampler": sampler})})  # fmt: skip
    policy = trained(told_)
    lines = evaluated(tmp_path)
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert all(line["questions"] == 24 for line in lines)
    later = lines[1:]
    best = max(later, key=lambda line: line["reward"])
    assert best["step"] < 6, "else this test would say nothing"
    marked = [line["step"] for line in lines if line["best"]]
    assert marked[-1] == best["step"]
    assert checkpoints(tmp_path) == [f"checkpoint-{best['step']}", "checkpoint-6"], "and no other"
    kept = load_file(tmp_path / "checkpoints" / f"checkpoint-{best['step']}" / "model.safetensors")
    assert equal(policy, kept)
    said = describe_evaluation(tmp_path, "reward")
    assert f"step {best['step']} is kept" in said and "before training" in said
    assert json.loads((tmp_path / "policy" / "batuta.json").read_text())["workers"]


def test_evaluation_changes_nothing_of_what_is_learned(tmp_path, learned):
    """The same steps with an evaluation after each and with one at the end, of the same questions."""
    often = told(tmp_path / "often", learned / "policy", steps=4)
    seldom = often.model_copy(
        update={
            "output": tmp_path / "seldom",
            "evaluation": often.evaluation.model_copy(update={"every": 4}),
        }
    )
    trained(often)
    trained(seldom)
    assert untimed(metrics(often.output)) == untimed(metrics(seldom.output))


@pytest.mark.slow
def test_a_killed_training_knows_its_best_and_one_can_go_on_from_a_named_checkpoint(
    tmp_path, learned
):
    log = {"keep_checkpoints": 10}
    straight = told(tmp_path / "straight", learned / "policy", log=log)
    whole = trained(straight)
    shutil.copytree(straight.output, tmp_path / "again")
    again = straight.model_copy(update={"output": tmp_path / "again"})
    folder = RunFolder(again.output)
    assert find_checkpoint(folder, "3") == find_checkpoint(folder, "checkpoint-3")
    assert find_checkpoint(folder, str(folder.checkpoints / "checkpoint-3")).name == "checkpoint-3"
    best = [line["step"] for line in evaluated(again.output) if line["best"]][-1]
    assert find_checkpoint(folder, "best").name == f"checkpoint-{best}"
    assert equal(trained(again, resume=True, checkpoint="checkpoint-3"), whole)
    plain = lambda lines: [{k: v for k, v in line.items() if k != "usd"} for line in lines]  # noqa: E731
    assert plain(evaluated(again.output)) == plain(evaluated(straight.output))
    assert untimed(metrics(again.output)) == untimed(metrics(straight.output))


@pytest.mark.parametrize("name", ["checkpoint-9", "9", "nowhere", "best", "../policy"])
def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(tmp_path, name):
    folder = RunFolder(tmp_path)
    for step in (2, 10):
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
        for file in (
            "trainer_state.json",
            "model.txt",
            "optimizer.txt",
            "scheduler.txt",
            "rng_state.txt",
        ):
            text = json.dumps({"global_step": step})
            (folder.checkpoints / f"checkpoint-{step}" / file).write_text(text)
    (folder.checkpoints / "checkpoint-9").mkdir()  # one whose writing was cut off
    shutil.copytree(folder.checkpoints / "checkpoint-2", folder.checkpoints / "checkpoint-2.bak")
    with pytest.raises(ConfigError, match="there are: checkpoint-2, checkpoint-10"):
        find_checkpoint(folder, name)
    assert find_checkpoint(folder, None) == last_checkpoint(folder)


def test_the_checkpoint_from_which_a_stopped_training_resumes_is_kept_beside_the_best(
    tmp_path, random_policy
):
    told_ = told(
        tmp_path, random_policy, metric="right", steps=4, log={"keep_checkpoints": 1},
        evaluation={"every": 1, "questions": 2},
    )  # fmt: skip

    def stop_after(line):
        if line["step"] == 1:
            (tmp_path / "stop").touch()

    with pytest.raises(TrainingStoppedError, match="checkpoint-2 and the policy so far"):
        train_conductor(told_, ["pytest"], stop_after)
    kept = {path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")}
    assert kept == {"checkpoint-1", "checkpoint-2"}, "a random policy's first steps are alike"


def test_the_check_counts_what_evaluations_take(tmp_path, learned):
    report = check_training(told(tmp_path, learned / "policy", steps=7))
    (found,) = (each for each in report.figures if each.name == "evaluations")
    assert found.value == 5, "before the first step, after 2, 4, 6 and 7"
    assert "5 times 24 held-out questions" in found.source


# -- Weights & Biases, the hub ------------------------------------------------------------


def test_a_resumed_run_goes_on_in_weights_and_biases(tmp_path):
    told_ = settings(tmp_path, name="mine", log={"to": ["wandb"]})
    folder = RunFolder(tmp_path)
    first = wandb_environment(told_, folder, resume=False)
    assert first["WANDB_RESUME"] == "allow" and first["WANDB_RUN_ID"]
    assert wandb_environment(told_, folder, resume=True) == first
    assert wandb_environment(told_, folder, resume=False) != first, "begun anew it is another run"
    named = settings(tmp_path, log={"to": ["wandb"], "wandb_id": "abc", "run_name": "try 2"})
    assert wandb_environment(named, folder, resume=True)["WANDB_RUN_ID"] == "abc"
    assert grpo_config(named.model_copy(update={"log": named.log.model_copy(update={"to": []})}), folder).run_name == "try 2"  # fmt: skip
    assert grpo_config(told_.model_copy(update={"log": named.log.model_copy(update={"to": [], "run_name": ""})}), folder).run_name == "mine"  # fmt: skip


class FakeHub:
    """What `huggingface_hub` asks to make a model's repository and commit small files to it."""

    def __init__(self):
        self.made, self.files, self.tokens = [], {}, set()
        self.refuses = False

    async def __aenter__(self):
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/api/repos/create", self._create),
                web.post("/api/models/{owner}/{name}/preupload/{rev}", self._preupload),
                web.post("/api/models/{owner}/{name}/commit/{rev}", self._commit),
                web.get("/api/models/{owner}/{name}", self._info),
                web.get("/api/models/{owner}/{name}/revision/{rev}", self._info),
                web.post("/api/validate-yaml", self._yaml),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _create(self, request):
        self.tokens.add(request.headers.get("authorization"))
        if self.refuses:
            return web.json_response({"error": "no right to write there"}, status=403)
        self.made.append(await request.json())
        return web.json_response({"url": f"{self.url}/someone/mine"})

    async def _preupload(self, request):
        asked = await request.json()
        told = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked["files"]]  # fmt: skip
        return web.json_response({"files": told})

    async def _commit(self, request):
        for line in (await request.text()).splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                self.files[entry["value"]["path"]] = entry["value"]["content"]
        return web.json_response({"success": True, "commitUrl": f"{self.url}/someone/mine/commit/{'1' * 40}", "commitOid": "1" * 40})  # fmt: skip

    async def _info(self, request):
        return web.json_response({"id": "someone/mine", "sha": "1" * 40, "siblings": [], "private": True, "tags": []})  # fmt: skip

    async def _yaml(self, request):
        return web.json_response({"errors": [], "warnings": []})


def policy_folder(folder):
    (folder / "policy").mkdir()
    for name in ("config.json", "batuta.json", "model.safetensors"):
        (folder / "policy" / name).write_text("{}")
    return folder / "policy"


async def upload(hub, fake, policy):
    environ = {"HF_ENDPOINT": fake.url, "HF_TOKEN": "hf_of_the_test"}
    return await to_thread.run_sync(lambda: upload_policy(hub, policy, environ))


async def test_the_policy_is_uploaded_with_its_card(tmp_path):
    async with FakeHub() as fake:
        where = await upload(HubSettings(repo="someone/mine"), fake, policy_folder(tmp_path))
    assert where == f"{fake.url}/someone/mine"
    assert fake.made[0]["name"] == "mine" and fake.made[0]["visibility"] == "private"
    assert set(fake.files) == {"config.json", "batuta.json", "model.safetensors"}
    assert fake.tokens == {"Bearer hf_of_the_test"}


async def test_a_hub_that_refuses_or_is_away_loses_nothing(tmp_path):
    policy = policy_folder(tmp_path)
    async with FakeHub() as fake:
        fake.refuses = True
        with pytest.raises(SourceError, match=r"is trained, but could not be uploaded .*hf upload"):
            await upload(HubSettings(repo="someone/mine"), fake, policy)
    with pytest.raises(SourceError, match="hf upload someone/mine"):
        await upload(HubSettings(repo="someone/mine"), fake, policy)
    assert (policy / "model.safetensors").is_file()


@pytest.mark.parametrize("repo", ["mine", "a/b/c", "some one/mine", "-x/.."])
def test_a_name_that_is_none_is_said_before_the_training(repo):
    assert "write OWNER/NAME" in hub_problem(HubSettings(repo=repo), {"HF_TOKEN": "x"})


def test_the_check_says_that_the_hub_needs_a_token(tmp_path, learned, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    told_ = told(tmp_path, learned / "policy", hub={"repo": "someone/mine"})
    missing = check_training(told_, {}).missing
    assert any("needs a token: set HF_TOKEN" in each for each in missing)
    assert not any("token" in each for each in check_training(told_, {"HF_TOKEN": "x"}).missing)
