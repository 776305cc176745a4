"""Asynchronous training: how stale a batch may be, its ratios, and what a killed one goes on with."""

import asyncio
import json
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from batuta.lab import worlds
from batuta.lab.train.ahead import AheadQueue, WrittenBatch, read_pending
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.shared_prompt import completion_logprobs
from batuta.lab.train.trainer import make_trainer
from batuta.lab.worlds import shipped_policy_folder
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES


def told(folder, *, log=None, **optimiser):
    return settings(
        folder,
        policy={"start": str(shipped_policy_folder())},
        optimiser={"steps": 5, "temperature": 1.3, **optimiser},
        log={"sample_every": 1, **(log or {"checkpoint_every": 100})},
    )


def trained(told_, *, resume=False, heard=lambda line: None):
    train_conductor(told_, ["pytest"], heard, resume=resume)
    return load_file(told_.output / "policy" / "model.safetensors")


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class TestOrder:
    @given(
        steps=st.integers(1, 30),
        staleness=st.integers(0, 8),
        killed=st.lists(st.integers(0, 29), max_size=3),
        kept=st.booleans(),
    )
    def test_no_batch_is_staler_than_allowed(self, steps, staleness, killed, kept):
        """Wherever it is killed, and whether or not what was in flight was kept."""
        taken, stops = [], sorted({each for each in killed if each < steps})
        step, queue, written = 0, None, []

        def write(of, version):
            written.append(of)
            return WrittenBatch(step=of, version=version, rows={})

        while step < steps:
            pending = queue.pending() if queue and kept else ()
            queue = AheadQueue(staleness, steps, write)
            queue.restore(pending)
            upto = stops.pop(0) if stops else steps
            while step < max(upto, 1 if step == 0 else step):
                batch = queue.take(step)
                assert batch.step == step
                assert step - staleness <= batch.version <= step
                assert len(queue.pending()) == min(staleness, steps - 1 - step)
                taken.append(batch.step)
                step += 1
        assert taken == list(range(steps)), "each once, in order"
        if kept:
            assert written == list(range(steps)), "nothing that was kept is written again"

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[1]", '[{"step": 7, "version": 7, "rows": {}}]',
         '[{"step": 4, "version": 1, "rows": {}}]', '[{"step": 5, "version": 4, "rows": {}}]'],
    )  # fmt: skip
    def test_what_may_not_be_learned_from_any_more_is_written_anew(self, tmp_path, text):
        """Damaged, of another step, or too old by a smaller setting."""
        file = tmp_path / "in_flight-0.json"
        file.write_text(text)
        assert read_pending(file, 4, 2) == []
        assert read_pending(tmp_path / "none.json", 4, 2) == []


class Watched:
    """A trainer that keeps, for each pass of the loss, its weights and what it was given."""

    def __init__(self, told_):
        pool = worlds.rehearsal_pool()
        asked = make_episodes(draw_questions(told_), pool, told_.pool, told_.seed)
        self.folder = RunFolder(told_.output)
        opening = RolloutRunnerFactory(told_, self.folder)
        self.reward = RewardFunction(told_, asked, opening, lambda step, rollouts: None)
        self.trainer = make_trainer(
            told_, asked, reward=self.reward, folder=self.folder, on_metrics=self.folder.add_metrics
        )
        self.passes = []
        inner = self.trainer._compute_loss

        def loss(model, inputs):
            self.passes.append(
                (int(self.trainer.state.global_step), inputs,
                 {k: v.clone() for k, v in self.trainer.model.state_dict().items()})
            )  # fmt: skip
            return inner(model, inputs)

        self.trainer._compute_loss = loss

    def run(self):
        self.trainer.train()
        loop = self.trainer.async_loop
        asyncio.run_coroutine_threadsafe(self.reward.cancel(), loop).result()
        return self


def test_ratios_are_over_the_weights_that_wrote_the_batch(tmp_path):
    watched = Watched(told(tmp_path, staleness=2, learning_rate=3e-3, micro_batch=4)).run()
    weights = {step: state for step, _, state in watched.passes}
    model = watched.trainer.model
    ratios = {}
    for step, inputs, now in watched.passes:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width, written = inputs["completion_ids"].shape[1], inputs["completion_mask"].bool()

        def logps(state, ids=ids, mask=mask, width=width):
            model.load_state_dict(state)
            with torch.no_grad():
                return completion_logprobs(model, ids, mask, width, temperature=1.3)[0]

        then = logps(weights[max(0, step - 2)])
        torch.testing.assert_close(
            inputs["old_per_token_logps"][written], then[written], atol=2e-4, rtol=1e-4
        )
        ratio = (logps(now) - inputs["old_per_token_logps"]).exp()[written]
        ratios.setdefault(step, []).append(float((ratio - 1).abs().max()))
    assert max(ratios[0]) < 1e-3, "nothing was learned yet"
    assert min(max(ratios[step]) for step in (2, 3, 4)) > 1e-2, "the weights have moved since"
    assert [line["staleness"] for line in metrics(tmp_path)] == [0, 1, 2, 2, 2]


def test_weights_that_stand_still_learn_the_same_either_way(tmp_path):
    """Then there is no staleness: the same drafts, executed and rewarded the same."""
    runs = {}
    for staleness in (0, 3):
        folder = tmp_path / str(staleness)
        trained(told(folder, staleness=staleness, learning_rate=1e-30))
        runs[staleness] = (
            samples(folder),
            [(line["reward"], line["grad_norm"]) for line in metrics(folder)],
        )
    assert runs[0][0] == runs[3][0]
    for one, two in zip(runs[0][1], runs[3][1], strict=True):
        assert one == pytest.approx(two, rel=1e-4)


def test_a_synchronous_training_has_no_old_weights(tmp_path):
    watched = Watched(told(tmp_path, steps=2)).run()
    assert all("old_per_token_logps" not in inputs for _, inputs, _ in watched.passes)
    assert "staleness" not in metrics(tmp_path)[0]


def test_the_policy_writes_on_while_workers_are_held(tmp_path):
    """No worker of the first batch answers before the third is being run."""
    watched = Watched(told(tmp_path, steps=4, staleness=2))
    running, all_there = [], threading.Event()
    inner = watched.reward._run_batch

    async def held(step, drafts, roots):
        running.append(step)
        if step == 2:
            all_there.set()
        assert await asyncio.to_thread(all_there.wait, 20), "the third batch never began"
        return await inner(step, drafts, roots)

    watched.reward._run_batch = held
    watched.run()
    assert sorted(running) == [0, 1, 2, 3]


def test_an_error_of_a_later_batch_ends_the_training_and_what_is_run(tmp_path):
    watched = Watched(told(tmp_path, steps=4, staleness=2))
    cancelled = []

    async def broken(step, drafts, roots):
        if step == 0:
            raise RuntimeError("the pool is gone")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(step)
            raise
        return []

    watched.reward._run_batch = broken
    with pytest.raises(RuntimeError, match="the pool is gone"):
        watched.run()
    loop = watched.trainer.async_loop
    asyncio.run_coroutine_threadsafe(watched.reward.cancel(), loop).result(10)
    assert sorted(cancelled) == [1, 2]


class Killed(Exception):
    """In place of a signal."""


def killed_after(told_, step):
    def heard(line):
        if line["step"] == step:
            raise Killed

    with pytest.raises(Killed):
        trained(told_, heard=heard)


LOG = {"checkpoint_every": 2, "sample_every": 1}


class TestResumption:
    @pytest.mark.slow
    def test_it_goes_on_with_what_was_in_flight(self, tmp_path):
        whole = told(tmp_path / "whole", staleness=2, log=LOG)
        straight = trained(whole)
        cut = told(tmp_path / "cut", staleness=2, log=LOG)
        killed_after(cut, 3)
        again = trained(cut, resume=True)
        assert equal(straight, again)
        assert untimed(metrics(whole.output)) == untimed(metrics(cut.output))
        assert samples(whole.output) == samples(cut.output)

    def test_without_it_the_training_is_another_and_as_valid(self, tmp_path):
        cut = told(tmp_path, staleness=2, log=LOG)
        killed_after(cut, 3)
        (kept,) = (tmp_path / "checkpoints" / "checkpoint-2").glob("in_flight-*.json")
        kept.unlink()
        trained(cut, resume=True)
        lines = metrics(tmp_path)
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
        assert [line["staleness"] for line in lines] == [0, 1, 0, 1, 2]

    def test_a_training_may_be_resumed_with_another_bound(self, tmp_path):
        killed_after(told(tmp_path, staleness=3, log=LOG), 3)
        trained(told(tmp_path, staleness=1, log=LOG), resume=True)
        assert [line["staleness"] for line in metrics(tmp_path)][2:] == [0, 1, 1]


@pytest.mark.slow
def test_second_rounds_are_written_ahead_too(tmp_path):
    told_ = told(tmp_path, staleness=2, questions=2, micro_batch=8, log=LOG)
    told_ = told_.model_copy(
        update={"recursion": told_.recursion.model_copy(update={"share": 0.5})}
    )
    killed_after(told_, 3)
    assert not list((tmp_path / "checkpoints" / "checkpoint-2").glob("in_flight-*.json"))
    trained(told_, resume=True)
    assert max(line["staleness"] for line in metrics(tmp_path)) == 2


def test_any_sampler_may_write_ahead(tmp_path):
    trained(told(tmp_path, staleness=1, sampler="transformers", steps=3))
    assert [line["staleness"] for line in metrics(tmp_path)] == [0, 1, 1]
