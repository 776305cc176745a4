"""Fitting to drafts and drills: what counts, and that a killed stage ends with the same weights."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from batuta.cli import app
from batuta.errors import ConfigError, StoreError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.distil_stage import read_examples, run_distillation
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import Drill, TrainingExample, add_gradients
from batuta.lab.train.model import load_policy
from batuta.lab.train.run_folder import read_jsonl
from batuta.lab.train.settings import EvaluationSettings
from batuta.lab.worlds.world2 import world2_pool
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
STEPS, KEPT = 14, 4
POOL = world2_pool(1, 3)
NAMES = [str(worker.id) for worker in POOL]


def draft(name):
    return f'subtasks = ["Solve it."]\nmodel_id = ["{name}"]\naccess_list = [[]]'


LINES = [
    *({"question": f"What is {n} and {n}?", "pool": NAMES, "draft": draft(NAMES[n % 3])}
      for n in range(9)),
    *({"drill": [f"{n} or {n + 1}:", f" {n + 1}", "\nand 3 or 2:", " 3"], "weight": 2.0}
      for n in range(5)),
]  # fmt: skip


def write(folder, lines):
    folder.mkdir(exist_ok=True)
    path = folder / "drafts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def stage(folder, policy, **changes):
    return settings(
        folder, policy={"start": str(policy)}, pool={"source": "world2:1:3"},
        prompt={"compact": True, "descriptions": True},
        distil={"steps": STEPS, "batch": 4, "learning_rate": 5e-3},
        log={"checkpoint_every": KEPT}, **changes,
    )  # fmt: skip


def gradients(model, tokenizer, batch):
    model.zero_grad()
    loss = add_gradients(model, tokenizer, batch)
    return loss, {n: p.grad.clone() for n, p in model.named_parameters()}


def same(one, other, tolerance=1e-6):
    return all(torch.allclose(one[name], other[name], atol=tolerance) for name in one)


def weights(folder):
    return load_file(folder / "model.safetensors")


class TestDrills:
    def test_only_what_is_learned_counts(self, random_policy):
        model, tokenizer = load_policy(str(random_policy), None)
        drill = Drill(("Add 1 and 2: ", "three", ". Add 2 and 2: ", "four"), 3.0)
        loss, found = gradients(model, tokenizer, [drill])
        model.zero_grad()
        ids, counted = [], []
        for number, part in enumerate(drill.parts):
            more = tokenizer(part, add_special_tokens=False)["input_ids"]
            ids += more
            counted += [bool(number % 2)] * len(more)
        logits = model(torch.tensor([ids])).logits[0, :-1]
        lost = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        mean = lost[torch.tensor(counted[1:])].mean()
        mean.backward()
        assert loss.drills == pytest.approx(float(mean.detach()), abs=1e-5) and loss.drafts is None
        assert same(found, {n: p.grad for n, p in model.named_parameters()})

    @pytest.mark.parametrize("prompts", [("Ask one.", "Ask two."), ("Ask one.", "Ask one.")])
    def test_beside_drafts_each_token_has_its_weight(self, random_policy, prompts):
        model, tokenizer = load_policy(str(random_policy), None)
        drafts = [TrainingExample(p, draft(n)) for p, n in zip(prompts, NAMES[:2], strict=True)]
        drills = [Drill(("1 or 2:", " 2"), 2.0), Drill(("7 or 5:", " 7", " 3 or 4:", " 4"), 2.0)]
        loss, both = gradients(model, tokenizer, [drills[0], *drafts, drills[1]])
        alone, of_drafts = gradients(model, tokenizer, drafts)
        trained, of_drills = gradients(model, tokenizer, drills)
        written = sum(
            len(tokenizer(d.draft + tokenizer.eos_token, add_special_tokens=False)["input_ids"])
            for d in drafts
        )
        told = sum(
            len(tokenizer(part, add_special_tokens=False)["input_ids"])
            for drill in drills
            for part in drill.parts[1::2]
        )
        share = written / (written + 2.0 * told)
        mixed = {n: share * of_drafts[n] + (1 - share) * of_drills[n] for n in both}
        assert same(both, mixed, 1e-5)
        assert loss.drafts == pytest.approx(alone.drafts, abs=1e-5)
        assert loss.drills == pytest.approx(trained.drills, abs=1e-5)


class TestLines:
    def test_workers_of_a_line_are_prompted_as_those_of_the_pool(self, random_policy, tmp_path):
        _, tokenizer = load_policy(str(random_policy), None)
        told = stage(tmp_path, random_policy)
        brought = [{"id": w.id, "description": w.description, "shares": w.measured} for w in POOL]
        lines = [{"question": "q", "pool": NAMES}, {"question": "q", "workers": brought}]
        path = write(tmp_path, [{**line, "draft": draft(NAMES[0])} for line in lines])
        ((one, other),) = read_examples(path, POOL, told, tokenizer)
        assert isinstance(one, TrainingExample) and isinstance(other, TrainingExample)
        assert one.prompt == other.prompt and "Right alone: bills" in one.prompt

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_a_file_is_read_in_whatever_unicode_it_is_written(
        self, random_policy, tmp_path, encoding
    ):
        _, tokenizer = load_policy(str(random_policy), None)
        told, path = stage(tmp_path, random_policy), write(tmp_path, LINES)
        plain = read_examples(path, POOL, told, tokenizer)
        path.write_text(path.read_text(), encoding=encoding)
        assert read_examples(path, POOL, told, tokenizer) == plain

    def test_drafts_of_questions_that_are_kept_back_are_not_learned(
        self, random_policy, tmp_path, capsys
    ):
        _, tokenizer = load_policy(str(random_policy), None)
        told, path = stage(tmp_path, random_policy), write(tmp_path, LINES)
        without = frozenset({text_key("WHAT is 3 and 3"), text_key("what is 5 and 5?")})
        found = read_examples(path, POOL, told, tokenizer, without=without)
        assert len(found) == len(LINES) - 2
        assert not any("is 3 and 3" in str(group) for group in found)
        assert "2 workflows in" in capsys.readouterr().err

    def test_the_stage_leaves_out_what_the_evaluation_keeps_back(self, random_policy, tmp_path):
        asked = tmp_path / "asked.jsonl"
        rows = [{"question": f"What is {n} and {n}?", "answer": 2 * n} for n in range(9)]
        asked.write_text("\n".join(map(json.dumps, rows)))
        told = stage(
            tmp_path,
            random_policy,
            evaluation={"every": 5, "questions": 9, "tasks": {str(asked): 1}},
        )
        with pytest.raises(ConfigError, match="all its questions are held out"):
            run_distillation(told, write(tmp_path, LINES[:9]), lambda *_: None)

    @pytest.mark.parametrize(
        "line",
        [
            {"drill": ["only given"]},
            {"drill": ["given", ""]},
            {"drill": ["given", 7]},
            {"drill": "given"},
            {"drill": ["a", "b"], "weight": "much"},
            {"drill": ["a", "b"], "weight": 0},
            {"question": "q", "pool": NAMES, "draft": draft(NAMES[0]), "weight": -1},
            {"question": "q", "pool": NAMES, "draft": draft(NAMES[0]), "weight": float("nan")},
            {"question": "q", "workers": [], "draft": draft("x")},
            {"question": "q", "workers": [{"description": "no id"}], "draft": draft("x")},
            {"question": "q", "workers": ["x"], "draft": draft("x")},
            {"question": "q", "workers": [{"id": "x"}], "draft": draft("other")},
            {"question": "q", "workers": [{"id": "x", "shares": {"f": 7}}], "draft": draft("x")},
            {"question": "q", "workers": [{"id": "x", "shares": [1]}], "draft": draft("x")},
            {"question": 7, "pool": NAMES, "draft": draft(NAMES[0])},
            {"question": None, "pool": NAMES, "draft": draft(NAMES[0])},
        ],
    )
    def test_what_is_no_line_is_one_sentence(self, random_policy, tmp_path, line):
        path = write(tmp_path, [LINES[0], line])
        with pytest.raises(ConfigError, match="row 2: neither a draft over its pool nor a drill"):
            run_distillation(stage(tmp_path, random_policy), path, lambda *_: None)


CHILD = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
torch.set_num_threads(1)
from batuta.lab.train.distil_stage import run_distillation
from batuta.lab.train.settings import TrainSettings
settings = TrainSettings.model_validate_json(Path(sys.argv[1]).read_text())
def slow(step, steps, loss):
    if step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
run_distillation(settings, Path(sys.argv[2]), slow)
"""


class TestResuming:
    def test_a_killed_stage_ends_with_the_same_weights(
        self, random_policy, tmp_path, training_line
    ):
        path = write(tmp_path, LINES)
        whole = stage(tmp_path / "whole", random_policy)
        run_distillation(whole, path, lambda *_: None)

        cut = stage(tmp_path / "cut", random_policy)
        file = tmp_path / "told.json"
        file.write_text(cut.model_dump_json())
        done = training_line.run(str(file), str(path), code=CHILD, cwd=tmp_path, env=os.environ)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (cut.output / "distilled.checkpoint").is_file()
        assert not (cut.output / "distilled").exists()
        heard = []
        run_distillation(cut, path, lambda step, *_: heard.append(step), resume=True)
        assert heard == list(range(KEPT + 1, STEPS + 1)), "what was kept is not done again"
        assert not (cut.output / "distilled.checkpoint").exists()
        one, two = weights(whole.output / "distilled"), weights(cut.output / "distilled")
        assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
        logs = [read_jsonl(each.output / "distilled.jsonl") for each in (whole, cut)]
        for log in logs:
            assert [line["seconds"] for line in log] == sorted(line["seconds"] for line in log)
            for line in log:
                del line["seconds"]
        assert logs[0] == logs[1]
        assert any("drills" in line for line in logs[0])

    def cut_short(self, folder, policy, path, **changes):
        """Settings of a stage that an error ended after its first checkpoint."""
        told = stage(folder, policy, **changes)

        def stop(step, *_):
            if step == KEPT + 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_distillation(told, path, stop)
        return told

    def test_without_resume_it_begins_anew(self, random_policy, tmp_path):
        path = write(tmp_path, LINES)
        told = self.cut_short(tmp_path / "run", random_policy, path)
        heard = []
        run_distillation(told, path, lambda step, *_: heard.append(step))
        assert heard == list(range(1, STEPS + 1))

    def test_another_trainings_checkpoint_is_refused(self, random_policy, tmp_path):
        path = write(tmp_path, LINES)
        told = self.cut_short(tmp_path / "run", random_policy, path)
        other = write(tmp_path / "other", LINES[1:])
        held_out = EvaluationSettings(every=1, questions=2)
        cases = (
            (told, other),
            (told.model_copy(update={"seed": 9}), path),
            (told.model_copy(update={"evaluation": held_out}), path),
        )
        for settings_, source in cases:
            with pytest.raises(ConfigError, match="belongs to other settings or examples"):
                run_distillation(settings_, source, lambda *_: None, resume=True)

    @pytest.mark.parametrize("damage", [b"", b"\0" * 64, "half", "a list", "other weights"])
    def test_a_damaged_checkpoint_is_one_sentence(self, random_policy, tmp_path, damage):
        path = write(tmp_path, LINES)
        told = self.cut_short(tmp_path / "run", random_policy, path)
        file = told.output / "distilled.checkpoint"
        kept, whole = torch.load(file, weights_only=True), file.read_bytes()
        if damage == "a list":
            torch.save([1, 2], file)
        elif damage == "other weights":
            torch.save({**kept, "weights": kept["weights"][1:]}, file)
        else:
            file.write_bytes(whole[: len(whole) // 2] if damage == "half" else damage)
        with pytest.raises(ConfigError, match="cannot be resumed from") as caught:
            run_distillation(told, path, lambda *_: None, resume=True)
        assert "\n" not in str(caught.value)

    def test_a_full_disk_is_one_sentence(self, random_policy, tmp_path, monkeypatch):
        def full(_state, path):
            Path(path).write_bytes(b"some")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(torch, "save", full)
        told = stage(tmp_path / "run", random_policy)
        with pytest.raises(StoreError, match="cannot be written: No space left"):
            run_distillation(told, write(tmp_path, LINES), lambda *_: None)
        assert not list(told.output.glob("*.part"))

    def test_the_time_before_it_was_killed_counts(self, random_policy, tmp_path):
        checkpoint = FitCheckpoint(path=tmp_path / "c", every=1, made_of="same", resume=True)
        model, _ = load_policy(str(random_policy), None)
        learning = list(model.parameters())
        optimiser = torch.optim.AdamW(learning)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=9)
        checkpoint.before = 100.0
        checkpoint.keep(1, learning, optimiser, schedule)
        later = FitCheckpoint(path=tmp_path / "c", every=1, made_of="same", resume=True)
        assert later.restore(learning, optimiser, schedule) == 1
        assert 100.0 <= later.seconds < 160.0

    def test_the_commands_go_on(self, random_policy, tmp_path):
        path = write(tmp_path, LINES)
        file = tmp_path / "training.toml"
        file.write_text(
            f'output = "{tmp_path}/run"\n[policy]\nstart = "{random_policy}"\n'
            '[pool]\nsource = "world2:1:3"\n[prompt]\ncompact = true\ndescriptions = true\n'
            "[[curriculum]]\ntasks = { world2 = 1.0 }\n"
            f"[distil]\nsteps = {STEPS}\nbatch = 4\nlearning_rate = 5e-3\n"
            '[warmup]\nsteps = 3\nbatch = 4\ndrills = 0.0\nrevisions = 0.0\nvocabulary = "free"\n'
            f"[log]\ncheckpoint_every = {KEPT}\n"
        )
        run = CliRunner()
        for command in (["warmup"], ["distil", "--drafts", str(path)]):
            done = run.invoke(app, ["train", *command, "--config", str(file), "--resume"])
            assert done.exit_code == 0, done.output
        assert (tmp_path / "run" / "distilled" / "model.safetensors").is_file()
        assert not list((tmp_path / "run").glob("*.checkpoint"))
