"""Two hosts train one policy over gloo; after either was killed they resume and end alike."""

import os
import signal
import sys
import time

import pytest

from batuta.lab import worlds

pytest.importorskip("torch", reason="training needs batuta-llm[train]")
pytest.importorskip("trl", reason="training needs batuta-llm[train]")
import torch
from safetensors.torch import load_file

from batuta.lab.train.model import make_model, make_tokenizer
from cluster.hosts import Hosts, why_not
from lab.train.stage import LIBRARIES, NETWORK, metrics, settings, untimed

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800), *LIBRARIES[1:]]
STEPS = 4
SECONDS = 500
CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.settings import TrainSettings
settings = TrainSettings.model_validate_json(Path(sys.argv[1]).read_text())
train_conductor(settings, ["child"], lambda line: None, resume=sys.argv[2] == "resume")
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A tiny Qwen2 that knows nothing: most of what it writes is malformed, and it learns anyway."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = make_tokenizer([t.question for t in worlds.draw_tasks(None, 50, 1)], 400)
    torch.manual_seed(0)
    sizes = {key: NETWORK[key] for key in ("hidden", "layers", "heads", "kv_heads", "inner")}
    make_model(tokenizer, **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def hosts(tmp_path):
    obstacle = why_not("ss")
    if obstacle is not None:
        pytest.skip(f"no hosts can be made here: {obstacle}")
    with Hosts(tmp_path / "hosts", ("left", "right")) as found:
        yield found


def told(folder, policy):
    return settings(
        folder,
        optimiser={"steps": STEPS, "questions": 4, "micro_batch": 8, "completion": 24, "entropy": 0.01},
        policy={"start": str(policy)},
        log={"checkpoint_every": 1, "sample_every": 1},
    )  # fmt: skip


def start(hosts, folder, what, how, port):
    """A process on each host, together one training."""
    file, child = folder / "told.json", folder / "child.py"
    file.write_text(what.model_dump_json())
    child.write_text(CHILD)
    running = {}
    for rank, name in enumerate(("left", "right")):
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "TRL_EXPERIMENTAL_SILENCE": "1",
               "OMP_NUM_THREADS": "1", "MASTER_ADDR": hosts["left"].address, "MASTER_PORT": str(port),
               "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
               "ACCELERATE_USE_CPU": "true"}  # fmt: skip
        running[name] = hosts[name].start(
            sys.executable, str(child), str(file), how, log=f"log-{port}", env=env
        )
    return running


def wait_for_both(running, hosts):
    for name, process in running.items():
        code = process.wait(SECONDS)
        logs = "".join(path.read_text()[-2_000:] for path in hosts[name].folder.glob("log-*"))
        assert code == 0, f"{name}: {logs}"


def wait_for_checkpoint(folder, running, number):
    until = time.monotonic() + SECONDS
    while not (folder / "checkpoints" / f"checkpoint-{number}" / "trainer_state.json").is_file():
        assert time.monotonic() < until, "no checkpoint was written"
        assert all(process.poll() is None for process in running.values()), "it ended early"
        time.sleep(0.1)


@pytest.mark.parametrize("victim", ["left", "right"])
def test_two_hosts_resume_after_one_was_killed(hosts, policy, tmp_path, victim):
    whole, broken = told(tmp_path / "whole", policy), told(tmp_path / "broken", policy)
    wait_for_both(start(hosts, tmp_path, whole, "begin", 29501), hosts)
    running = start(hosts, tmp_path, broken, "begin", 29502)
    wait_for_checkpoint(broken.output, running, 2)
    hosts[victim].kill(signal.SIGKILL)
    other = "right" if victim == "left" else "left"
    assert running[other].wait(SECONDS) != 0, "alone it cannot go on, and it does not hang"
    wait_for_both(start(hosts, tmp_path, broken, "resume", 29503), hosts)
    assert [line["step"] for line in metrics(broken.output)] == list(range(1, STEPS + 1))
    assert untimed(metrics(broken.output)) == untimed(metrics(whole.output))
    ours = load_file(broken.output / "policy" / "model.safetensors")
    theirs = load_file(whole.output / "policy" / "model.safetensors")
    before = load_file(policy / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(not torch.equal(ours[name], before[name]) for name in before), "it learned"
