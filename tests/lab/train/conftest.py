"""Policies that several tests share: built once, by the commands' own code."""

import fcntl
import os
import shutil
import warnings
from pathlib import Path

from batuta.lab import worlds

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
import torch
import transformers

from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.model import make_model, make_tokenizer
from batuta.lab.train.warmup import run_warmup
from fakes.command_line import CommandLine
from lab.train.stage import LEARNING, NETWORK, POLICY, settings

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)


def make_once(factory, name, make) -> Path:
    """What `make(folder)` returns, a path: made by the first worker that wants it, the others wait."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # all workers of a test run have this one
    folder, said = root / f"made-{name}", root / f"made-{name}.path"
    with (root / f"made-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed or was killed
            folder.mkdir()
            said.write_text(str(make(folder)))
    return Path(said.read_text())


@pytest.fixture(scope="session")
def training_line():
    """Starts `batuta` without loading the libraries of training each time: that takes many seconds."""
    with CommandLine(
        "batuta.lab.train.conductor_training", "batuta.lab.train.warmup", "batuta.lab.train.distil_stage"
    ) as found:  # fmt: skip
        yield found


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory) -> Path:
    """A policy that knows nothing."""

    def make(folder):
        tokenizer = make_tokenizer([t.question for t in worlds.draw_tasks(None, 50, 1)], 400)
        torch.manual_seed(0)
        sizes = {key: NETWORK[key] for key in ("hidden", "layers", "heads", "kv_heads", "inner")}
        make_model(tokenizer, **sizes).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make_once(tmp_path_factory, "random", make)


@pytest.fixture(scope="session")
def warm(tmp_path_factory) -> Path:
    """A policy that has seen the syntax and writes it now and then."""
    return make_once(
        tmp_path_factory,
        "warm",
        lambda folder: run_warmup(settings(folder, **POLICY), lambda step, loss: None),
    )


@pytest.fixture(scope="session")
def learned(warm, tmp_path_factory) -> Path:
    """The run folder of a short training from the warm start; its policy writes workflows."""

    def make(folder):
        told = settings(folder, optimiser=LEARNING, policy={"start": str(warm)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            train_conductor(told, ["pytest"], lambda line: None)
        return folder

    return make_once(tmp_path_factory, "learned", make)
