"""What a killed or spoilt training leaves: half a checkpoint, figures that are no numbers."""

import io
import json
import resource
import shutil
import struct

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import save_file

from batuta.errors import ConfigError, StoreError
from batuta.gateway.ui.learning import read_lines
from batuta.lab.commands.train import format_metrics
from batuta.lab.train.adapters import add_adapters
from batuta.lab.train.bill import read_earlier_metrics
from batuta.lab.train.checkpoint_files import RESUMING, report_unsaved
from batuta.lab.train.conductor_training import find_checkpoint, last_checkpoint, train_conductor
from batuta.lab.train.live_view import watch_training
from batuta.lab.train.model import load_policy, make_model, merge_policy, save_stage
from batuta.lab.train.run_folder import RunFolder, read_jsonl
from batuta.lab.train.settings import LoraSettings
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES

ONES = torch.ones(100).numpy().tobytes()
OTHER = '{"global_step": 2}'
NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (2, 4):
        place = folder.checkpoints / f"checkpoint-{step}"
        place.mkdir(parents=True)
        save_file({"a": torch.ones(40), "b": torch.ones(3, 3)}, place / "model.safetensors")
        torch.save({"state": torch.ones(100)}, place / "optimizer.pt")
        torch.save({"chance": 1}, place / "rng_state.pth")
        torch.save({"last_epoch": step}, place / "scheduler.pt")
        (place / "config.json").write_text('{"model_type": "qwen2"}')
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def cut(tenths):
    return lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * tenths // 10])


def flip(path):
    """Changes a bit of the tensor in the middle."""
    data = bytearray(path.read_bytes())
    data[data.index(ONES) + len(ONES) // 2] ^= 8
    path.write_bytes(data)


def become_folder(path):
    path.unlink()
    path.mkdir()


PARTS = {"optimizer.pt": "optimiser", "scheduler.pt": "schedule", "rng_state.pth": "random state"}
DAMAGES = {f"cut-{n}": cut(n) for n in range(10)} | {
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "folder": become_folder,
}
MISSING = {"missing": lambda path: path.unlink()}
FLIPPED = {"flipped": flip}
UTF_16 = {"utf-16": lambda path: path.write_text(path.read_text(), encoding="utf-16")}
EMPTY = {"no tensor": lambda path: path.write_bytes(struct.pack("<Q", 2) + b"{}")}


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        pytest.param(name, spoil, id=f"{name}-{kind}")
        for name, more in {
            "model.safetensors": {**MISSING, **EMPTY},
            "optimizer.pt": {**MISSING, **FLIPPED},
            "scheduler.pt": MISSING,
            "rng_state.pth": MISSING,
            "config.json": UTF_16,
            "trainer_state.json": {
                **MISSING,
                **UTF_16,
                "other": lambda path: path.write_text(OTHER),
            },
        }.items()
        for kind, spoil in (DAMAGES | more).items()
    ],
)
def test_a_damaged_checkpoint_is_passed_over_in_a_sentence(run, capsys, name, spoil):
    assert last_checkpoint(run).name == "checkpoint-4"
    assert capsys.readouterr().err == ""
    spoil(run.checkpoints / "checkpoint-4" / name)
    assert last_checkpoint(run).name == "checkpoint-2"
    said = capsys.readouterr().err
    part = PARTS.get(name, name.partition(".")[0])
    assert "checkpoint-4 is skipped" in said and (name in said or part in said)
    assert said.count("\n") == 1
    shutil.rmtree(run.checkpoints / "checkpoint-2")
    assert last_checkpoint(run) is None


def test_a_password_is_in_no_file_of_a_run_and_its_metrics_are_known_again(tmp_path):
    told = settings(
        tmp_path,
        pool={"journal": "postgresql://me:s3cret@db/calls?sslpassword=s3cret"},
        curriculum=[{"tasks": {"runs:postgresql://me:s3cret@db/runs": 1.0, "größe.jsonl": 1.0}}],
    )
    folder = RunFolder(tmp_path)
    folder.begin(told, ["batuta"])
    folder.add_metrics({"step": 1, "steps": 2.0})
    text = (tmp_path / "settings.json").read_text("utf-8")
    assert "s3cret" not in text
    assert {"postgresql://db/calls", "runs:postgresql://db/runs", "größe.jsonl"} <= {
        *text.split('"')
    }
    assert read_earlier_metrics(told) == [{"step": 1, "steps": 2.0}]


def test_a_copy_under_another_name_is_no_checkpoint(run):
    newest = run.checkpoints / "checkpoint-4"
    for name in ("checkpoint-4.bak", "checkpoint-old", "checkpoint-"):
        shutil.copytree(newest, run.checkpoints / name)
    assert last_checkpoint(run) == find_checkpoint(run, "4") == newest
    with pytest.raises(ConfigError, match=r"there are: checkpoint-2, checkpoint-4$"):
        find_checkpoint(run, "checkpoint-4.bak")
    run.rewind(2)
    assert last_checkpoint(run).name == "checkpoint-2"
    assert (run.checkpoints / "checkpoint-4.bak").is_dir(), "somebody's own copy stays"


def test_a_checkpoint_of_another_run_is_not_taken_for_that_of_its_name_here(run, tmp_path):
    here = run.checkpoints / "checkpoint-4"
    assert find_checkpoint(run, str(here)) == find_checkpoint(run, f"{here}/") == here
    elsewhere = tmp_path / "other" / "checkpoints" / "checkpoint-4"
    with pytest.raises(ConfigError, match=r"no complete checkpoint .*other/checkpoints"):
        find_checkpoint(run, str(elsewhere))


def test_a_named_checkpoint_that_is_damaged_is_refused(run):
    cut(5)(run.checkpoints / "checkpoint-4" / "model.safetensors")
    with pytest.raises(ConfigError, match="there is no complete checkpoint 4"):
        find_checkpoint(run, "4")


def other_model(place, tokenizer):
    make_model(tokenizer, hidden=32, layers=1, heads=2, kv_heads=1, inner=64).save_pretrained(place)


STRANGE = {
    "model": other_model,
    "optimiser": lambda place, _: torch.save(
        {"state": {}, "param_groups": []}, place / "optimizer.pt"
    ),
    "schedule": lambda place, _: torch.save({}, place / "scheduler.pt"),
    "chance": lambda place, _: torch.save({}, place / "rng_state.pth"),
}


def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(tmp_path, random_policy):
    def told(steps):
        return settings(
            tmp_path,
            optimiser={"steps": steps},
            policy={"start": str(random_policy)},
            log={"checkpoint_every": 1, "keep_checkpoints": 1},
        )

    train_conductor(told(1), ["pytest"], lambda line: None)
    newest, kept = last_checkpoint(RunFolder(tmp_path)), tmp_path / "kept"
    assert newest is not None
    shutil.copytree(newest, kept)
    for spoil in STRANGE.values():
        spoil(newest, load_policy(str(random_policy), None)[1])
        with pytest.raises(ConfigError, match=r"checkpoint-1 cannot be resumed from \("):
            train_conductor(told(2), ["pytest"], lambda line: None, resume=True)
        shutil.rmtree(newest)
        shutil.copytree(kept, newest)
    train_conductor(told(2), ["pytest"], lambda line: None, resume=True)
    assert last_checkpoint(RunFolder(tmp_path)).name == "checkpoint-2"


def test_figures_that_are_no_numbers_are_null_and_their_step_stays(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_metrics({"step": 1, "loss": NAN, "grad_norm": INFINITE, "skipped": 1.0})
    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=pytest.fail)
    assert line == {"step": 1, "loss": None, "grad_norm": None, "skipped": 1.0}
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 2, "loss": NaN, "x": -Infinity}\n')
    for read in (read_jsonl, read_lines):
        lines = read(tmp_path / "metrics.jsonl")
        assert [each["step"] for each in lines] == [1, 2], "a file of an earlier version too"
        assert lines[1] == {"step": 2, "loss": None, "x": None}


def test_a_line_that_is_cut_or_damaged_is_skipped_by_whoever_reads(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_metrics({"step": 1, "loss": 0.5})
    good = json.dumps({"step": 2, "draft": "größer"}, ensure_ascii=False).encode()
    damaged = [
        b"\xff\xfe\x00",
        b"[]",
        b"7",
        b'{"a": 1}',
        b'{"step": "x"}',
        good[: good.index(b"\xb6")],
    ]
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"\n".join([*([good] if name == "metrics.jsonl" else []), *damaged]))
    assert [line["step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]
    assert read_jsonl(tmp_path / "samples.jsonl") == []
    console = Console(width=120, record=True, file=io.StringIO())
    watch_training(tmp_path, console, once=True)
    folder.rewind(1)
    assert [line["step"] for line in read_jsonl(tmp_path / "metrics.jsonl")] == [1]


def test_a_disk_that_is_full_takes_no_line_of_a_training_that_is_resumed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_metrics({"step": 1, "loss": 0.5})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl.new").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"metrics\.jsonl cannot be written: No space left"):
        folder.rewind(1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("skipped", [0.0, 1.0])
def test_skipped_steps_are_seen_by_who_watches(tmp_path, skipped):
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.add_metrics({"step": step, "reward": 0.5, "skipped": skipped * (step - 1)})
    console = Console(width=120, record=True, file=io.StringIO())
    watch_training(tmp_path, console, once=True)
    assert ("skipped steps" in console.export_text()) == bool(skipped)


def test_a_skipped_step_is_said():
    assert "skipped" in format_metrics({"loss": None, "reward": 0.5, "skipped": 1.0})
    assert "skipped" not in format_metrics({"loss": 0.1, "skipped": 0.0})


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), SafetensorError("I/O error: full")]
)
def test_a_checkpoint_that_cannot_be_written_is_one_sentence(error):
    with pytest.raises(StoreError, match=r"^out/checkpoints cannot be written \(.*--resume"):
        with report_unsaved("out/checkpoints", RESUMING):
            raise error


def test_a_policy_that_cannot_be_written_is_one_sentence(random_policy, tmp_path):
    """Whoever writes one says so: a stage, a merge."""
    model, tokenizer = load_policy(str(random_policy), None)
    adapters = tmp_path / "adapters"
    model.name_or_path = str(random_policy)
    add_adapters(model, LoraSettings(rank=2)).save_pretrained(adapters)
    whole, _ = load_policy(str(random_policy), None)
    writers = {
        "warmup": lambda: save_stage(whole, tokenizer, settings(tmp_path), "warmup"),
        "whole": lambda: merge_policy(adapters, tmp_path / "whole"),
    }
    for name, write in writers.items():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as a disk that fills up
        try:
            with pytest.raises(StoreError, match=rf"{name} cannot be written \(.*free disk space"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
