"""GRPO on TRL: the policy writes workflows, the engine runs them, and the reward trains the policy.

The training follows the Conductor paper, sections 3.2 and 4.1. It adds to TRL's `GRPOTrainer` an
asynchronous reward that executes every completion, a sampler for small policies on a CPU, and a
loss that reads a prompt once for its whole group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.grpo_trainer import GRPOTrainer

from batuta.core import Round
from batuta.lab.train.ahead import AheadQueue, WrittenBatch, pad_logprobs, score_rows
from batuta.lab.train.budget import CallRefusedError
from batuta.lab.train.checkpoint_files import (
    RESUMING,
    refuse_unusable_checkpoint,
    report_unsaved,
)
from batuta.lab.train.correction import count_beyond_limit
from batuta.lab.train.device import bf16_autocast, without_adapters
from batuta.lab.train.episodes import Episode, render_chat_prompt
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.sampler import Sampler
from batuta.lab.train.settings import TrainSettings
from batuta.lab.train.shared_prompt import completion_logprobs


@dataclass(frozen=True, slots=True)
class FirstRound:
    """An executed first round that a second round continues."""

    draft: PolicyDraft
    row: int
    """The row of the draft in this process's batch."""
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class PromptCompletions:
    """The completions of one prompt."""

    prompt: list[int]
    """Token ids of the prompt."""
    ids: list[list[int]]
    """Token ids of each completion."""
    logprobs: list[list[float]] | None = None
    """Log-probability of each completion token in nats, as the inference engine reports it; None if
    the engine reports none."""


RunFirstRounds = Callable[
    [Sequence[tuple[Episode, PolicyDraft, int]], Any, int], "list[FirstRound | None]"
]
"""Executes first rounds, given as (episode, draft, row), with the trainer and the step; returns
None for each draft that could not be parsed."""


StartRollouts = Callable[[int, Mapping[str, Any], Any], None]
"""Starts to execute the batch of a later step, given the step, its rows and the trainer."""


class StalePolicyTrainer(GRPOTrainer):
    """A `GRPOTrainer` that may learn from batches written by older weights.

    The loss then has the ratio of the new to the older weights' probabilities (PPO); TRL alone
    would use the new weights for both. The trainer also ends when the budget is spent, and reports
    damaged checkpoints and full disks with errors that say what to do.
    """

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's output with the log-probabilities of the weights that wrote the batch."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._require_paid_calls()
        if "importance_sampling_ratio" in output:
            self._log_beyond_limit(output)
        rollout: Any = self.rollout_func
        taken: WrittenBatch | None = getattr(rollout, "taken", None)
        if taken is not None and taken.logprobs is not None:
            like = output["completion_ids"]
            output["old_per_token_logps"] = pad_logprobs(taken.logprobs, like)
        return output

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with refuse_unusable_checkpoint(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with refuse_unusable_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with refuse_unusable_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)

    def _require_paid_calls(self) -> None:
        """Raise CallRefusedError in all processes if the budget refused a call of any of them."""
        reward: Any = self.reward_funcs[0]
        if getattr(reward, "has_budget", False) and any(gather_object([reward.refused])):
            raise CallRefusedError

    def _log_beyond_limit(self, output: dict[str, Any]) -> None:
        """Log the share of completions that are masked, or of tokens whose ratio is truncated."""
        whole = self.vllm_importance_sampling_mode.startswith("sequence")
        settings: Any = self.args
        found: Any = count_beyond_limit(
            output["old_per_token_logps"],
            output["sampling_per_token_logps"],
            output["completion_mask"],
            whole=whole,
            limit=float(settings.vllm_importance_sampling_clip_max),
        )
        total: Any = self.accelerator.reduce(found, reduction="sum")
        beyond, every = total.tolist()
        name = "masked" if whole else "truncated"
        self._metrics["train"][name].append(beyond / max(1, every))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save as TRL does, but raise StoreError if the checkpoint cannot be written."""
        with report_unsaved(self.args.output_dir or ".", RESUMING):
            super()._save_checkpoint(*args, **kwargs)


class SharedPromptTrainer(StalePolicyTrainer):
    """A `GRPOTrainer` that reads each distinct prompt once in a forward pass.

    `shared_prompt` computes the pass; on a CPU a step's update takes less than half the time. The
    policy is called without DDP's wrapper, so the trainer averages the gradients of several
    processes itself, once a step.
    """

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run TRL's step, and average the gradients of all processes when they are due."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients and self.accelerator.num_processes > 1:
            policy: Any = self.accelerator.unwrap_model(self.model_wrapped)
            learning = [each for each in policy.parameters() if each.requires_grad]
            # a process without gradients takes part as well, as the others wait for it
            mine = [torch.zeros_like(e) if e.grad is None else e.grad for e in learning]
            joined: Any = self.accelerator.reduce(
                torch.cat([each.flatten() for each in mine]), reduction="mean"
            )
            parts = joined.split([each.numel() for each in learning])
            for each, part in zip(learning, parts, strict=True):
                each.grad = part.view_as(each)
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return TRL's inputs, regrouped so that each prompt occurs in as few passes as possible.

        TRL shuffles the rows, so every pass would read nearly every prompt. All passes of a batch
        belong to one step, so their order does not change its gradient.
        """
        before: Any = self._buffered_inputs
        inputs: Any = super()._prepare_inputs(generation_batch)
        parts: Any = self._buffered_inputs
        if parts is before or not parts:
            return inputs
        self._buffered_inputs = gather_groups(parts)
        return self._buffered_inputs[self._step % len(parts)]

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
        """Return log-probabilities and entropies of completions' tokens, each (B, T), in nats."""
        bare: Any = self.accelerator.unwrap_model(model)
        with self.accelerator.autocast():  # DDP's wrapper, which is bypassed, would do this
            logps_BT, entropies_BT = completion_logprobs(
                without_adapters(bare),
                input_ids,
                attention_mask,
                logits_to_keep,
                temperature=self.temperature,
                compute_entropy=compute_entropy,
            )
        return logps_BT, entropies_BT, None


def gather_groups(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Redistribute a step's rows, sorted by prompt, over passes of the same number and size.

    Args:
        parts: the fields of each pass: tensors (B, …) or lists of length B with a row for each
            completion, `prompt_ids` (B, P) included, or figures that are the same in all passes.

    Returns:
        The same fields for each new pass.
    """
    prompts = torch.cat([part["prompt_ids"] for part in parts])
    order = torch.unique(prompts, dim=0, return_inverse=True)[1].argsort(stable=True)
    gathered: list[dict[str, Any]] = [{} for _ in parts]
    size = len(order) // len(parts)
    for name, first in parts[0].items():
        for at, part in enumerate(gathered):
            rows = order[at * size : (at + 1) * size]
            if isinstance(first, torch.Tensor) and first.ndim:
                part[name] = torch.cat([each[name] for each in parts])[rows]
            elif isinstance(first, list):
                every = [row for each in parts for row in each[name]]
                part[name] = [every[int(row)] for row in rows]
            else:
                part[name] = first
    return gathered


class RolloutFunction:
    """TRL's `rollout_func`: samples first rounds, and second rounds that continue some of them.

    Each completion of a second round continues a different first round of the same question, or
    another one if that draft could not be parsed. The first round is credited for the result, and
    advantages are computed within a round (Conductor paper, section 3.3).

    With `optimiser.staleness` the batches of later steps are sampled ahead, and executed while the
    policy learns from earlier batches.
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: TrainSettings,
        episodes: Sequence[Episode],
        *,
        run_first_rounds: RunFirstRounds,
        start_rollouts: StartRollouts,
        schedule: Sequence[tuple[int, int]],
    ) -> None:
        """Create the function.

        Rows name episodes by their index in `episodes`. `schedule` has the episode and the round (0
        or 1) of every group of the training, in order. `run_first_rounds` executes first rounds, so
        that second rounds can continue them; `start_rollouts` starts to execute a later batch.
        """
        self._tokenizer = tokenizer
        self._settings = settings
        self._rendering = settings.prompt.rendering()
        self._episodes = episodes
        self._run_first_rounds = run_first_rounds
        self._start_rollouts = start_rollouts
        self._schedule = schedule
        self._trainer: Any = None
        self._sampler: Sampler | None = None
        o = settings.optimiser
        self.ahead = AheadQueue(o.staleness, o.steps, self._write_ahead)
        self.taken: WrittenBatch | None = None
        """The batch of this step; None before the first step and without `optimiser.staleness`."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return TRL's columns with one completion for each row of `prompts`.

        Rows of one question and round must be adjacent.
        """
        began = time.perf_counter()
        step = int(trainer.state.global_step)
        groups = [
            (int(row[0]["episode"]), int(row[0]["round"]))
            for row in prompts[:: self._settings.optimiser.group]
        ]
        if not self._settings.optimiser.staleness:
            rows = self._write(groups, trainer, step)
        else:
            if groups != self._groups(trainer, step):
                raise RuntimeError(f"TRL requests other rows in step {step} than the schedule has")
            self._trainer = trainer
            self.taken = self.ahead.take(step)
            rows = self.taken.rows
            trainer._log_metric("staleness", float(step - self.taken.version))  # noqa: SLF001
        trainer._log_metric("time/sampling", time.perf_counter() - began)  # noqa: SLF001
        return rows

    def write_greedily(self, episodes: Sequence[Episode], trainer: Any) -> list[str]:
        """Return the policy's greedy first-round draft for each question."""
        texts = [
            render_chat_prompt(self._tokenizer, each.request(self._rendering)) for each in episodes
        ]
        found = self._sample(texts, trainer, seed=0, group=1, greedy=True)
        rows = [ids for completions in found for ids in completions.ids]
        return [str(each) for each in self._tokenizer.batch_decode(rows, skip_special_tokens=True)]

    def restore(self, batches: Sequence[WrittenBatch], trainer: Any) -> None:
        """Execute the pending batches of an interrupted run; finished calls are not paid again."""
        self.ahead.restore(batches)
        for batch in batches:
            self._start_rollouts(batch.step, batch.rows, trainer)

    def pending(self, step: int) -> list[WrittenBatch]:
        """Return the batches that are written but not learned from after `step` finished steps."""
        unlearned = [self.taken] if self.taken is not None and self.taken.step == step else []
        return [*unlearned, *self.ahead.pending()]

    def _groups(self, trainer: Any, step: int) -> list[tuple[int, int]]:
        """Return the episode and round of each group that this process has in a step."""
        whole = self._settings.optimiser.questions
        mine = whole // int(trainer.accelerator.num_processes)
        first = step * whole + mine * int(trainer.accelerator.process_index)
        return list(self._schedule[first : first + mine])

    def _write_ahead(self, step: int, version: int) -> WrittenBatch:
        trainer, groups = self._trainer, self._groups(self._trainer, step)
        rows = self._write(groups, trainer, step)
        numbers = [number for number, _ in groups for _ in range(self._settings.optimiser.group)]
        rows["episode"] = numbers
        self._start_rollouts(step, rows, trainer)
        o = self._settings.optimiser
        scored = None
        if o.scores_drafts:
            pad = int(self._tokenizer.pad_token_id)
            scored = score_rows(trainer, rows, pad=pad, micro_batch=o.micro_batch)
        return WrittenBatch(step=step, version=version, rows=rows, logprobs=scored)

    def _write(self, groups: Sequence[tuple[int, int]], trainer: Any, step: int) -> dict[str, Any]:
        """Sample the completions of a step's groups, and return TRL's columns."""
        group = self._settings.optimiser.group
        first_episodes = [episode for episode, round_ in groups if round_ == 0]
        texts = [self._prompt(episode) for episode in first_episodes]
        seed = self._sampling_seed(trainer, step, 0)
        found = self._sample(texts, trainer, seed=seed, group=group)
        written = dict(zip(first_episodes, found, strict=True))
        second_episodes = [episode for episode, round_ in groups if round_ == 1]
        roots = self._run_first_drafts(second_episodes, written, groups, trainer, step=step)
        later = [
            self._prompt(e, root)
            for e, mine in zip(second_episodes, roots, strict=True)
            for root in mine
        ]
        # every process samples as many rows, as some engines collect the prompts of all processes
        # and wait for the same number from each
        padding_rows = self._max_second_rows(trainer) - len(later)
        seed = self._sampling_seed(trainer, step, 1)
        each = self._sample([*later, *texts[:1] * padding_rows], trainer, seed=seed, group=1)
        second_written = {
            e: each[at * group : (at + 1) * group] for at, e in enumerate(second_episodes)
        }
        return self._gather_rows(
            groups,
            {e: [found] for e, found in written.items()},
            second_written,
            roots=dict(zip(second_episodes, roots, strict=True)),
        )

    def _max_second_rows(self, trainer: Any) -> int:
        """Return the number of second-round rows to which each process pads its sample.

        It is the maximum over the processes, or 0 if they may sample different numbers of rows.
        """
        o, processes = self._settings.optimiser, int(trainer.accelerator.num_processes)
        if o.sampler == "own" or processes == 1:
            return 0
        second_rounds = self._settings.recursion.count_second_rounds(o.questions)
        return min(second_rounds, o.questions // processes // 2) * o.group

    def _run_first_drafts(
        self,
        second_episodes: Sequence[int],
        written: Mapping[int, PromptCompletions],
        groups: Sequence[tuple[int, int]],
        trainer: Any,
        *,
        step: int,
    ) -> list[list[FirstRound | None]]:
        """Execute first rounds, and return the one that each row of each second round continues.

        All rows of a question have None if none of its first drafts could be parsed.
        """
        group = self._settings.optimiser.group
        chosen: list[tuple[Episode, PolicyDraft, int]] = []
        for number in second_episodes:
            prompt = written[number].prompt
            for at, ids in enumerate(written[number].ids):
                text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
                row = groups.index((number, 0)) * group + at
                draft = PolicyDraft(text=text, prompt_tokens=len(prompt), tokens=len(ids))
                chosen.append((self._episodes[number], draft, row))
        roots = self._run_first_rounds(chosen, trainer, step) if chosen else []
        return [
            share_roots(roots[at * group : (at + 1) * group]) for at in range(len(second_episodes))
        ]

    def _prompt(self, number: int, root: FirstRound | None = None) -> str:
        previous = () if root is None else root.rounds
        request = self._episodes[number].request(self._rendering, previous)
        return render_chat_prompt(self._tokenizer, request)

    def _sample(
        self, texts: Sequence[str], trainer: Any, *, seed: int, group: int, greedy: bool = False
    ) -> list[PromptCompletions]:
        """Sample `group` completions for each text; `greedy` takes the most likely tokens."""
        if not texts:
            return []
        o = self._settings.optimiser
        prompts: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)[
            "input_ids"
        ]
        if o.sampler == "own":
            tokenizer = self._tokenizer
            model = without_adapters(trainer.accelerator.unwrap_model(trainer.model))
            sampler = self._sampler or Sampler.for_workflows(model, tokenizer)
            self._sampler = sampler
            generator, logprobs = torch.Generator().manual_seed(seed), None
            with bf16_autocast(self._settings):
                rows = sampler.sample(
                    prompts,
                    group,
                    max_tokens=o.completion,
                    temperature=0.0 if greedy else o.temperature,
                    generator=generator,
                )
        else:
            repeated = [prompt for prompt in prompts for _ in range(group)]
            with sample_greedily(trainer) if greedy else nullcontext():
                rows, logprobs = trainer._generate_single_turn(  # noqa: SLF001
                    repeated, None, {}, group
                )
        parts = [slice(at * group, (at + 1) * group) for at in range(len(prompts))]
        return [
            PromptCompletions(prompt, rows[part], logprobs and logprobs[part])
            for prompt, part in zip(prompts, parts, strict=True)
        ]

    def _sampling_seed(self, trainer: Any, step: int, round_: int) -> int:
        """Return a seed that depends only on the training's seed, step, round and process."""
        rank = int(trainer.accelerator.process_index)
        return ((self._settings.seed * 1_000_003 + step) * 2 + round_) * 1009 + rank

    def _gather_rows(
        self,
        groups: Sequence[tuple[int, int]],
        written: Mapping[int, Sequence[PromptCompletions]],
        second_written: Mapping[int, Sequence[PromptCompletions]],
        *,
        roots: Mapping[int, Sequence[FirstRound | None]],
    ) -> dict[str, Any]:
        rows: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "root": []}
        logprobs: list[list[float]] = []
        for number, round_ in groups:
            for completions in (second_written if round_ else written)[number]:
                logprobs += completions.logprobs or []
                for ids in completions.ids:
                    rows["prompt_ids"].append(completions.prompt)
                    rows["completion_ids"].append(ids)
            rows["root"] += roots[number] if round_ else [None] * self._settings.optimiser.group
        lengths = [len(ids) for ids in rows["prompt_ids"]]
        return {**rows, "logprobs": logprobs or None, "prompt_tokens": lengths}


@contextmanager
def sample_greedily(trainer: Any) -> Iterator[None]:
    """Make the trainer's generation, by transformers or vLLM, greedy within the block."""
    if trainer.use_vllm:
        engine, before = trainer.vllm_generation, trainer.vllm_generation.temperature
        engine.temperature = 0.0
        try:
            yield
        finally:
            engine.temperature = before
        return
    before = trainer.generation_config
    trainer.generation_config = copy(before)
    trainer.generation_config.update(do_sample=False, temperature=1.0, top_k=50, top_p=1.0)
    try:
        yield
    finally:
        trainer.generation_config = before


def share_roots(roots: Sequence[FirstRound | None]) -> list[FirstRound | None]:
    """Return each row's first round, or another row's if a row has None; all None if all have."""
    able = [root for root in roots if root is not None]
    if not able:
        return [None] * len(roots)
    return [able[at % len(able)] if root is None else root for at, root in enumerate(roots)]
