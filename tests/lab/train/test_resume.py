"""A killed training goes on: the same figures, the same weights, no call paid twice."""

import os
import signal
import time
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest
from anyio import to_thread
from safetensors.torch import load_file

from batuta.gateway.ui import learning
from batuta.gateway.ui.training_stop import ask_to_stop
from batuta.lab.train.conductor_training import last_checkpoint, train_conductor
from batuta.lab.train.live_view import TrainingState, read_view
from batuta.lab.train.run_folder import STOP_FILE, STOPPED_FILE, RunFolder
from batuta.lab.train.stopping import TrainingStoppedError
from lab.train.loopback import ENVIRONMENT, NAMES, Provider, pool_file, questions_file
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES
STEPS, WHOLE = 5, 3
"""Steps of the training, and those that end before it is killed: after the checkpoint of the second."""


@pytest.fixture
def key(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def told(folder, policy, pool, questions):
    return settings(
        folder,
        optimiser={"steps": STEPS, "questions": 4, "micro_batch": 16},
        policy={"start": str(policy)},
        pool={"source": str(pool), "concurrency": 6},
        curriculum=[{"tasks": {str(questions): 1.0}}],
        log={"checkpoint_every": 2, "sample_every": 1},
    )


async def trained(told_, *, resume=False, heard=lambda line: None):
    """The training in a thread, while the provider answers in this one."""
    await to_thread.run_sync(lambda: train_conductor(told_, ["pytest"], heard, resume=resume))


CHILD = """
import os, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.settings import TrainSettings
settings = TrainSettings.model_validate_json(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(str(os.getpid()))
train_conductor(settings, ["child"], lambda line: None)
"""


async def killed(told_, provider, tmp_path, training_line):
    """A training of its own process, killed without warning while calls are open."""
    file, pid, ended = tmp_path / "told.json", tmp_path / "pid", []
    file.write_text(told_.model_dump_json())
    here = {"cwd": tmp_path, "env": {**os.environ, **ENVIRONMENT}}

    async def train():
        run = partial(training_line.run, str(file), str(pid), code=CHILD, **here)
        ended.append(await to_thread.run_sync(run))

    async with anyio.create_task_group() as group:
        group.start_soon(train)
        with anyio.fail_after(300):
            while not provider.held:
                await anyio.sleep(0.1)
                assert not ended, f"it ended before it could be killed: {ended}"
        await anyio.sleep(1.0)  # let every answer that was given be written down
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert ended[0].returncode == -signal.SIGKILL


async def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    tmp_path, learned, key, training_line
):
    questions, policy = questions_file(tmp_path), learned / "policy"
    async with AsyncExitStack() as stack:
        whole = await stack.enter_async_context(Provider())
        (tmp_path / "a").mkdir()
        straight = told(tmp_path / "whole", policy, pool_file(tmp_path / "a", whole.url), questions)
        calls = []
        await trained(straight, heard=lambda line: calls.append(whole.answered.total()))
        cut = await stack.enter_async_context(Provider(held_after=calls[WHOLE - 1] + 1))
        (tmp_path / "b").mkdir()
        broken = told(tmp_path / "cut", policy, pool_file(tmp_path / "b", cut.url), questions)
        await killed(broken, cut, tmp_path, training_line)

        folder = RunFolder(broken.output)
        assert last_checkpoint(folder).name == "checkpoint-2"
        assert len(metrics(broken.output)) == WHOLE
        assert not (folder.policy / "model.safetensors").exists()
        cut.latency = 0.0
        await trained(broken, resume=True)

    assert cut.wrong == whole.wrong == []
    assert untimed(metrics(broken.output)) == untimed(metrics(straight.output))
    one = load_file(straight.output / "policy" / "model.safetensors")
    two = load_file(broken.output / "policy" / "model.safetensors")
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    assert set(cut.answered.values()) == {1}, "a call was paid twice"
    assert cut.answered == whole.answered, "both paid for the same calls"
    assert cut.answered.total() > calls[WHOLE - 1] + 1


async def test_ones_own_questions_and_models(tmp_path, learned, key):
    async with Provider() as provider:
        told_ = told(
            tmp_path,
            learned / "policy",
            pool_file(tmp_path, provider.url),
            questions_file(tmp_path),
        )
        told_ = told_.model_copy(
            update={"optimiser": told_.optimiser.model_copy(update={"steps": 2})}
        )
        await trained(told_)
    assert provider.wrong == []
    models = {request.body["model"] for request in provider.requests}
    assert models <= set(NAMES) and models
    assert all("What is" in str(request.body["messages"]) for request in provider.requests)
    lines = metrics(tmp_path)
    assert len(lines) == 2 and all(0 < line["usd"] < 1 for line in lines)
    assert 0 < sum(line["right"] for line in lines) < 2, "some answers are right, some are wrong"


async def test_a_training_begun_anew_leaves_nothing_of_the_old_one(tmp_path, learned, key):
    """Else --resume would go on with a stranger's checkpoint."""
    policy = {"start": str(learned / "policy")}
    long = settings(tmp_path, optimiser={"steps": 4}, policy=policy, log={"checkpoint_every": 2})
    await trained(long)
    assert last_checkpoint(RunFolder(tmp_path)).name == "checkpoint-4"
    short = settings(
        tmp_path, optimiser={"steps": 1}, policy=policy, log={"checkpoint_every": 2}, seed=5
    )
    await trained(short)
    assert [line["step"] for line in metrics(tmp_path)] == [1]
    kept = last_checkpoint(RunFolder(tmp_path))
    assert kept is None or kept.name == "checkpoint-1"


async def test_a_training_that_is_stopped_ends_with_a_checkpoint_and_goes_on(
    tmp_path, learned, key
):
    questions, policy = questions_file(tmp_path), learned / "policy"
    async with Provider() as provider:
        pool = pool_file(tmp_path, provider.url)
        straight = told(tmp_path / "whole", policy, pool, questions)
        await trained(straight)
        broken = told(tmp_path / "cut", policy, pool, questions)
        broken.output.mkdir()
        (broken.output / STOP_FILE).touch()  # of an earlier training, and forgotten

        def stop_after_three(line):
            if line["step"] == WHOLE:
                ask_to_stop(broken.output)

        with pytest.raises(TrainingStoppedError) as ended:
            await trained(broken, heard=stop_after_three)
        folder = RunFolder(broken.output)
        done = len(metrics(broken.output))
        assert WHOLE <= done < STEPS and f"stopped after {done} of {STEPS} steps" in str(
            ended.value
        )
        assert last_checkpoint(folder).name == f"checkpoint-{done}"
        assert (folder.policy / "model.safetensors").is_file()
        assert (learning.STOP_FILE, learning.STOPPED_FILE) == (STOP_FILE, STOPPED_FILE)
        assert read_view(broken.output, time.time()).state is TrainingState.STOPPED
        assert not (broken.output / STOP_FILE).exists()
        await trained(broken, resume=True)
        assert not (broken.output / STOPPED_FILE).exists()
    assert provider.wrong == []
    assert untimed(metrics(broken.output)) == untimed(metrics(straight.output))
    one, two = (
        load_file(each.output / "policy" / "model.safetensors") for each in (straight, broken)
    )
    assert all(one[name].equal(two[name]) for name in one)
