"""GRPO on TRL: the policy writes workflows, the engine plays them, the reward moves the weights.

Conductor paper, sections 3.2 and 4.1, on TRL's `GRPOTrainer`. Ours on top: an asynchronous reward
that conducts every completion, a sampler for small policies on CPU, and a loss that reads a
question once for its whole group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import DynamicCache
from trl.trainer.grpo_trainer import GRPOTrainer

from batuta.core import Round
from batuta.train.episodes import Episode, render_chat_prompt
from batuta.train.rollouts import PolicyDraft
from batuta.train.sampler import Sampler
from batuta.train.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class FirstRound:
    """A first round that was played, and that a second one continues."""

    draft: PolicyDraft
    row: int
    """Of its completion, in this process's batch."""
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class PromptCompletions:
    """What the policy wrote to one prompt."""

    prompt: list[int]
    ids: list[list[int]]
    logprobs: list[list[float]] | None = None
    """Of each token, as the engine that sampled it tells; None: it tells none."""


PlayFirstRounds = Callable[
    [Sequence[tuple[Episode, PolicyDraft, int]], Any], "list[FirstRound | None]"
]
"""Plays first rounds: episode, draft and row of each; None where there is nothing to continue."""


BATCH_PARTS = 4
"""Parts of a batch, by length, so that short completions are not padded to the longest."""


class SharedPromptTrainer(GRPOTrainer):
    """A `GRPOTrainer` whose forward pass reads each distinct prompt once.

    A group's completions share their prompt, which is more than half of the tokens: keys and values
    of the prompt are computed once a question and handed to every completion, with gradients. The
    numbers are the same as without; on a CPU a step's update takes less than half the time.

    It reads the policy itself, not the wrapper that joins the gradients of several processes: they
    are joined here, once a step.
    """

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """TRL's, after which every process has the mean of all processes' gradients."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients and self.accelerator.num_processes > 1:
            policy: Any = self.accelerator.unwrap_model(self.model_wrapped)
            learning = [each for each in policy.parameters() if each.requires_grad]
            # One who saw nothing to learn from takes part all the same.
            mine = [torch.zeros_like(e) if e.grad is None else e.grad for e in learning]
            joined: Any = self.accelerator.reduce(
                torch.cat([each.flatten() for each in mine]), reduction="mean"
            )
            parts = joined.split([each.numel() for each in learning])
            for each, part in zip(learning, parts, strict=True):
                each.grad = part.view_as(each)
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Log-probabilities (B, T) and entropies (B, T) of the completions' tokens, in nats."""
        prompts_BP = input_ids[:, :-logits_to_keep]
        prompt_mask_BP = attention_mask[:, :-logits_to_keep]
        unique_QP, which_B = torch.unique(prompts_BP, dim=0, return_inverse=True)
        first_Q = torch.stack([(which_B == q).nonzero()[0, 0] for q in range(len(unique_QP))])
        cache: Any = DynamicCache()
        bare: Any = self.accelerator.unwrap_model(model)
        core, head = bare.model, bare.lm_head
        core(
            unique_QP[:, :-1],
            attention_mask=prompt_mask_BP[first_Q][:, :-1],
            past_key_values=cache,
            use_cache=True,
        )
        written_BT = attention_mask[:, -logits_to_keep:].bool()
        logps_BT = input_ids.new_zeros(written_BT.shape, dtype=torch.float32)
        entropies_BT = torch.zeros_like(logps_BT)
        lengths_B = written_BT.sum(1)
        for rows in lengths_B.argsort().chunk(BATCH_PARTS):
            most = max(1, int(lengths_B[rows].max()))
            ids = input_ids[rows, -logits_to_keep - 1 :][:, : most + 1]
            mask = torch.cat([prompt_mask_BP[rows], written_BT[rows, :most].long()], 1)[:, :-1]
            mine = DynamicCache()
            for number, layer in enumerate(cache.layers):
                mine.update(layer.keys[which_B[rows]], layer.values[which_B[rows]], number)
            hidden = core(
                ids[:, :-1], attention_mask=mask, past_key_values=mine, use_cache=True
            ).last_hidden_state
            written = written_BT[rows, :most]
            logps_NV = torch.log_softmax(head(hidden[written]) / self.temperature, -1)
            chosen_N = logps_NV.gather(-1, ids[:, 1:][written][:, None]).squeeze(-1)
            at = torch.zeros_like(written_BT[rows])
            at[:, :most] = written
            logps_BT = logps_BT.index_add(0, rows, _scatter_values(at, chosen_N))
            if compute_entropy:
                spread_N = -(logps_NV.exp() * logps_NV).sum(-1)
                entropies_BT = entropies_BT.index_add(0, rows, _scatter_values(at, spread_N))
        return logps_BT, entropies_BT if compute_entropy else None, None


def _scatter_values(at_BT: torch.Tensor, values_N: torch.Tensor) -> torch.Tensor:
    """The values where `at_BT` says, 0 elsewhere."""
    return values_N.new_zeros(at_BT.shape).masked_scatter(at_BT, values_N)


class RolloutFunction:
    """TRL's `rollout_func`: first rounds, and second rounds of questions whose first was played.

    A second round's group continues one of the first round's completions of the same question: all
    of the group read the same prompt, so their rewards can be compared.
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: TrainSettings,
        episodes: Sequence[Episode],
        play_first_rounds: PlayFirstRounds,
    ) -> None:
        """Learns how to sample.

        Args:
            tokenizer: of the policy.
            settings: of the training.
            episodes: what the rows are about.
            play_first_rounds: plays first rounds, so that a second one can follow.
        """
        self._tokenizer = tokenizer
        self._settings = settings
        self._rendering = settings.prompt.rendering()
        self._episodes = episodes
        self._play_first_rounds = play_first_rounds

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """One completion for each row; the rows of a question and round stand together."""
        began = time.perf_counter()
        group = self._settings.optimiser.group
        about = [(int(row[0]["episode"]), int(row[0]["round"])) for row in prompts[::group]]
        firsts = [episode for episode, turn in about if turn == 0]
        texts = [self._prompt(episode) for episode in firsts]
        written = dict(zip(firsts, self._sample(texts, trainer, 0), strict=True))
        seconds = [episode for episode, turn in about if turn == 1]
        roots = self._play_chosen(seconds, written, about, trainer)
        later = [self._prompt(e, root) for e, root in zip(seconds, roots, strict=True)]
        again = dict(zip(seconds, self._sample(later, trainer, 1), strict=True))
        trainer._log_metric("time/sampling", time.perf_counter() - began)  # noqa: SLF001
        return self._gather_rows(about, (written, again), dict(zip(seconds, roots, strict=True)))

    def _play_chosen(
        self,
        seconds: Sequence[int],
        written: Mapping[int, PromptCompletions],
        about: Sequence[tuple[int, int]],
        trainer: Any,
    ) -> list[FirstRound | None]:
        """For each second round, the first one that it continues; None: no draft was valid."""
        group = self._settings.optimiser.group
        chosen: list[tuple[Episode, PolicyDraft, int]] = []
        for number in seconds:
            rng = Random(f"{self._settings.seed} root {number}")
            at = rng.randrange(group)
            ids, prompt = written[number].ids[at], written[number].prompt
            text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
            row = about.index((number, 0)) * group + at
            draft = PolicyDraft(text=text, prompt_tokens=len(prompt), tokens=len(ids))
            chosen.append((self._episodes[number], draft, row))
        return self._play_first_rounds(chosen, trainer) if chosen else []

    def _prompt(self, number: int, root: FirstRound | None = None) -> str:
        previous = () if root is None else root.rounds
        request = self._episodes[number].request(self._rendering, previous)
        return render_chat_prompt(self._tokenizer, request)

    def _sample(self, texts: Sequence[str], trainer: Any, turn: int) -> list[PromptCompletions]:
        """A group of completions for each text."""
        if not texts:
            return []
        o = self._settings.optimiser
        prompts: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)[
            "input_ids"
        ]
        if o.sampler == "own":
            tokenizer = self._tokenizer
            model = trainer.accelerator.unwrap_model(trainer.model)
            if self._settings.policy.lora:  # the adapters stand inside the base model's layers
                model = model.get_base_model()
            sampler = Sampler.for_workflows(model, tokenizer)
            chance, told = torch.Generator().manual_seed(self._sampling_seed(trainer, turn)), None
            rows = sampler.sample(
                prompts,
                o.group,
                max_tokens=o.completion,
                temperature=o.temperature,
                generator=chance,
            )
        else:
            repeated = [prompt for prompt in prompts for _ in range(o.group)]
            rows, told = trainer._generate_single_turn(repeated, None, {}, o.group)  # noqa: SLF001
        parts = [slice(at * o.group, (at + 1) * o.group) for at in range(len(prompts))]
        return [
            PromptCompletions(prompt, rows[part], told and told[part])
            for prompt, part in zip(prompts, parts, strict=True)
        ]

    def _sampling_seed(self, trainer: Any, turn: int) -> int:
        """A seed that depends on the training, the step, the round and the process alone."""
        rank = int(trainer.accelerator.process_index)
        step = int(trainer.state.global_step)
        return ((self._settings.seed * 1_000_003 + step) * 2 + turn) * 1009 + rank

    def _gather_rows(
        self,
        about: Sequence[tuple[int, int]],
        written: tuple[Mapping[int, PromptCompletions], Mapping[int, PromptCompletions]],
        roots: Mapping[int, FirstRound | None],
    ) -> dict[str, Any]:
        """The rows in TRL's form, and what the reward needs to know of each."""
        rows: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "root": []}
        logprobs: list[list[float]] = []
        for number, turn in about:
            completions = written[turn][number]
            root = roots[number] if turn else None
            logprobs += completions.logprobs or []
            for ids in completions.ids:
                rows["prompt_ids"].append(completions.prompt)
                rows["completion_ids"].append(ids)
                rows["root"].append(root)
        lengths = [len(ids) for ids in rows["prompt_ids"]]
        return {**rows, "logprobs": logprobs or None, "prompt_tokens": lengths}
