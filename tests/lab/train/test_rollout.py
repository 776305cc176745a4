"""Rollouts of first and second rounds, and what of them earns what."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from batuta.errors import ConfigError
from batuta.lab import worlds
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.grpo import FirstRound, RolloutFunction, share_roots
from batuta.lab.train.machine import question_problem
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.reward import mix_rewards
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.trainer import make_dataset, make_trainer
from batuta.language import parse_workflow
from lab.train.stage import LIBRARIES, metrics, settings

pytestmark = LIBRARIES
GROUP = 8


def test_a_continued_first_round_is_paid_for_what_the_second_made_of_it():
    rows = [None, None, 1, 1, None, None, 4, 4]
    rewards = [0.5, 0.5, 1.0, 0.5, 1.0, 0.0, None, None]
    assert mix_rewards(rewards, rows, 0.25) == [
        0.5, pytest.approx(0.75 * 0.5 + 0.25 * 0.75), 1.0, 0.5, 1.0, 0.0, None, None
    ]  # fmt: skip


reward = st.one_of(st.none(), st.floats(0, 1))


@given(rewards=st.lists(reward, min_size=4, max_size=4), later=st.lists(reward, min_size=3),
       discount=st.floats(0, 1))  # fmt: skip
def test_only_continued_first_rounds_are_paid_otherwise(rewards, later, discount):
    paid = mix_rewards([*rewards, *later], [None] * 4 + [2] * len(later), discount)
    assert paid[:2] == rewards[:2] and paid[3:] == [rewards[3], *later]
    known = [value for value in later if value is not None]
    if rewards[2] is None or not known:
        assert paid[2] == rewards[2]
    else:
        low, high = sorted((rewards[2], sum(known) / len(known)))
        assert low - 1e-9 <= paid[2] <= high + 1e-9


class Recorded:
    """A training whose every step's runs are kept."""

    def __init__(self, folder, policy, **optimiser):
        told = settings(
            folder,
            optimiser={"steps": 1, "questions": 4, "group": GROUP, "micro_batch": 32, **optimiser},
            policy={"start": str(policy)},
            recursion={"share": 0.5, "discount": 0.25},
            pool={"permute": True},
        )
        self.settings, self.rollouts, self.seeds = told, [], []
        self.episodes = make_episodes(
            draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed
        )
        opening = RolloutRunnerFactory(told, RunFolder(folder))
        conducted = RewardFunction(told, self.episodes, opening, self._heard)
        self.trainer = make_trainer(
            told,
            self.episodes,
            reward=conducted,
            folder=RunFolder(folder),
            on_metrics=lambda line: None,
        )

    def _heard(self, step, rollouts):
        self.rollouts.append(rollouts)

    def prompts(self):
        return [row["prompt"] for row in make_dataset(self.settings) for _ in range(GROUP)]  # pyright: ignore[reportArgumentType, reportCallIssue]

    def rollout(self):
        return self.trainer.rollout_func(self.prompts(), self.trainer)


@pytest.fixture(scope="module")
def recorded(learned, tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp("rounds"), learned / "policy")


def test_rows_stand_in_pairs_of_rounds(recorded):
    about = [(row[0]["episode"], row[0]["round"]) for row in recorded.prompts()[::GROUP]]
    assert about == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_second_rounds_prompt_shows_the_first_round(recorded):
    written = recorded.rollout()
    tokenizer = recorded.trainer.processing_class
    for block in range(4):
        rows_ = range(block * GROUP, (block + 1) * GROUP)
        texts = [tokenizer.decode(written["prompt_ids"][row]) for row in rows_]
        roots = [written["root"][row] for row in rows_]
        episode = recorded.episodes[block // 2]
        assert all(episode.task.question in text for text in texts)
        if block % 2 == 0:
            assert len(set(texts)) == 1, "a first round's group reads one prompt"
            assert roots == [None] * GROUP and "Played:" not in texts[0]
            continue
        assert all(roots), "the policy writes well enough to be continued"
        rows_before = range((block - 1) * GROUP, block * GROUP)
        own = [first.row == row for first, row in zip(roots, rows_before, strict=True)]
        assert sum(own) > 1, "each continues its own first round"
        for first, text in zip(roots, texts, strict=True):
            assert first.row in rows_before, "one of its own question"
            assert "Played:" in text
            for step in parse_workflow(first.draft.text, episode.pool).steps:  # pyright: ignore[reportAttributeAccessIssue]
                assert f"{step.worker}: {step.subtask}" in text


def test_a_root_that_cannot_be_continued_gives_its_place_to_others():
    a, b = (FirstRound(PolicyDraft(text=t), row, ()) for row, t in enumerate("ab"))
    assert share_roots([a, b]) == [a, b]
    assert share_roots([None, a, None, b]) == [a, a, a, b]
    assert share_roots([None, None]) == [None, None]


def test_every_first_round_that_was_continued_is_credited():
    """Two of three first rounds are continued; the third keeps what it earned itself."""
    rewards = [0.5, 1.0, 0.5, 1.0, 0.5]
    assert mix_rewards(rewards, [None, None, None, 0, 1], 0.25) == [0.625, 0.875, 0.5, 1.0, 0.5]


def test_the_reward_credits_every_root_that_a_row_continued(recorded):
    """As TRL calls it: none is left out, and no row that nobody continued is paid otherwise."""
    written, trainer = recorded.rollout(), recorded.trainer
    numbers = [row[0]["episode"] for row in recorded.prompts()]
    texts = trainer.processing_class.batch_decode(
        written["completion_ids"], skip_special_tokens=True
    )
    recorded.rollouts.clear()
    asking = trainer.reward_funcs[0](
        completions=texts, completion_ids=written["completion_ids"], episode=numbers,
        trainer_state=trainer.state, log_metric=lambda *_: None, root=written["root"],
        prompt_tokens=written["prompt_tokens"],
    )  # fmt: skip
    paid = asyncio.run_coroutine_threadsafe(asking, trainer.async_loop).result()
    own = [each.reward for each in recorded.rollouts[0]]
    continued = {root.row for root in written["root"] if root}
    assert len(continued) > GROUP, "most first rounds are continued"
    for row, (mine, earned) in enumerate(zip(paid, own, strict=True)):
        later = [
            r for r, root in zip(own, written["root"], strict=True) if root and root.row == row
        ]
        assert bool(later) == (row in continued)
        assert mine == pytest.approx(
            0.75 * earned + 0.25 * sum(later) / len(later) if later else earned
        )


def test_its_seed_runs_the_first_round_again_exactly(recorded):
    recorded.rollouts.clear()
    recorded.trainer.train()
    (rollouts,) = recorded.rollouts
    again = [(row, each) for row, each in enumerate(rollouts) if each.draft.root]
    assert len(again) == 2 * GROUP
    for row, each in again:
        first_block = (row // GROUP - 1) * GROUP
        own = rollouts[first_block : first_block + GROUP]
        (match,) = [
            first for first in own
            if first.draft.text == each.draft.root.text and first.run.header.seed == each.run.header.seed
        ]  # fmt: skip
        replayed, original = each.run.rounds[0], match.run.rounds[0]
        assert replayed.workflow == original.workflow
        assert [s.result for s in replayed.steps] == [s.result for s in original.steps]


def test_a_training_with_second_rounds_tells_of_them(learned, tmp_path):
    told = settings(
        tmp_path,
        optimiser={"questions": 4},
        policy={"start": str(learned / "policy")},
        recursion={"share": 0.5},
    )
    train_conductor(told, ["pytest"], lambda line: None)
    for line in metrics(tmp_path):
        assert 0 <= line["second/stands"] <= 1 and 0 <= line["second/right"] <= 1


class Engine:
    """Stands where a trainer with vLLM does, which tells the log-probability of every token."""

    def __init__(self):
        self.asked = []
        self.metrics = {}
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.state = SimpleNamespace(global_step=0)

    def _generate_single_turn(self, prompts, images, fields, group):
        self.asked.append((prompts, group))
        rows_ = [[len(self.asked), n] for n in range(len(prompts))]
        return rows_, [[-0.5, -float(n)] for n in range(len(prompts))]

    def _log_metric(self, name, value):
        self.metrics[name] = value


def rollout_function(tokenizer, told, asked):
    """Synchronous, and no first round can be continued."""
    return RolloutFunction(
        tokenizer, told, asked,
        run_first_rounds=lambda chosen, trainer, step: [None] * len(chosen),
        start_rollouts=lambda *_: pytest.fail("nothing is run ahead"), schedule=(),
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_log_probabilities_of_another_engine_reach_trl(tmp_path, learned, share):
    """TRL corrects for the difference between vLLM's numbers and its own, and needs both."""
    told = settings(
        tmp_path,
        optimiser={"sampler": "vllm-server", "group": 3, "micro_batch": 12, "questions": 4},
        recursion={"share": share},
    )
    asked = make_episodes(draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(learned / "policy")
    engine = Engine()
    prompts = [row["prompt"] for row in list(make_dataset(told))[:4] for _ in range(3)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    written = rollout_function(tokenizer, told, asked)(prompts, engine)
    assert len(engine.asked) == (2 if share else 1) and engine.asked[0][1] == 3
    assert len(written["logprobs"]) == len(written["completion_ids"]) == 12
    for ids, told_ in zip(written["completion_ids"], written["logprobs"], strict=True):
        assert told_ == [-0.5, -float(ids[1])], "each row keeps its own"


def test_the_rows_of_a_step_are_the_same_whoever_samples(learned, tmp_path):
    """Seeds of sampling depend on the training, the step, the round and the process alone."""
    one = Recorded(tmp_path / "a", learned / "policy").rollout()
    two = Recorded(tmp_path / "b", learned / "policy").rollout()
    assert one["completion_ids"] == two["completion_ids"]
    assert torch.tensor(one["prompt_tokens"]).tolist() == [len(p) for p in one["prompt_ids"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_samples_as_often_and_as_much_as_the_others(rank, tmp_path, random_policy):
    """One of two has no second round; an engine that gathers prompts waits for it all the same."""
    told = settings(
        tmp_path,
        optimiser={"questions": 4, "group": 2, "micro_batch": 4, "sampler": "transformers"},
        policy={"start": str(random_policy)},
        recursion={"share": 0.2},
    )
    episodes = make_episodes(draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(random_policy)
    asked = []

    def generate(prompts, images, fields, group):
        asked.append(len(prompts))
        return [[5, 6] for _ in prompts], None

    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=2, process_index=rank),
        state=SimpleNamespace(global_step=0),
        _generate_single_turn=generate,
        _log_metric=lambda name, value: None,
    )
    rows = [row["prompt"] for row in list[Any](make_dataset(told)) for _ in range(2)]
    mine = rows[:16][rank * 4 : rank * 4 + 4]
    written = rollout_function(tokenizer, told, episodes)(mine, trainer)
    assert asked == ([2, 2] if rank == 0 else [4, 2])
    assert len(written["prompt_ids"]) == len(written["root"]) == 4


def test_a_share_that_rounds_to_nothing_still_trains_what_is_served(tmp_path):
    told = settings(tmp_path, optimiser={"questions": 4}, recursion={"share": 0.1})
    about = [row["prompt"][0]["round"] for row in list[Any](make_dataset(told))][:4]
    assert about == [0, 1, 0, 0]
    assert told.recursion.rounds == 2
    assert settings(tmp_path).recursion.rounds == 1
    with pytest.raises(ConfigError, match="at least two"):
        make_dataset(settings(tmp_path, optimiser={"questions": 1}, recursion={"share": 0.1}))


@pytest.mark.parametrize(("questions", "seconds"), [(2, 1), (3, 1), (5, 2), (7, 3)])
def test_an_odd_number_of_questions_has_second_rounds_too(tmp_path, questions, seconds):
    """In one process; each of several has whole pairs."""
    told = settings(tmp_path, optimiser={"questions": questions}, recursion={"share": 0.5})
    about = [row["prompt"][0]["round"] for row in list[Any](make_dataset(told))][:questions]
    assert sum(about) == seconds
    assert (question_problem(told, questions) is None) is False
    assert question_problem(told, 1) is None
