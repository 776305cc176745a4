"""Builds TRL's trainer from the settings: its data set, options and callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from peft import LoraConfig, PeftModel
from torch.distributed.tensor import DTensor
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from batuta.errors import ConfigError
from batuta.lab.train.adapters import lora_config
from batuta.lab.train.ahead import KeepPendingBatches, pending_file, read_pending
from batuta.lab.train.allocator import MemoryTrimmer
from batuta.lab.train.correction import correction_options
from batuta.lab.train.device import (
    choose_attention,
    freeze_lower_layers,
    narrow_frozen,
    set_threads,
    without_adapters,
)
from batuta.lab.train.episodes import Episode
from batuta.lab.train.grpo import RolloutFunction, SharedPromptTrainer, StalePolicyTrainer
from batuta.lab.train.machine import (
    completion_problem,
    count_parameters,
    keeps_frozen_narrow,
    question_problem,
    read_devices,
)
from batuta.lab.train.model import (
    check_own_sampler,
    load_policy,
    load_to_adapt,
    require_policy_start,
)
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.run_folder import RunFolder, finite_figures
from batuta.lab.train.sampler import drop_generation_settings
from batuta.lab.train.settings import OptimiserSettings, TrainSettings

MetricsListener = Callable[[dict[str, Any]], None]
"""Called with each step's metrics."""
GROUP_THEN_BATCH = "group-then-batch"


def make_trainer(
    settings: TrainSettings,
    episodes: Sequence[Episode],
    reward: RewardFunction,
    folder: RunFolder,
    *,
    on_metrics: MetricsListener,
) -> GRPOTrainer:
    """Return TRL's trainer, ready to run.

    Raises:
        ConfigError: there is no policy to start from, the policy cannot be loaded or sampled, or a
            step cannot be divided among the processes.
    """
    start = require_policy_start(settings)
    model, tokenizer, adapters = _load_start(settings, start)
    choose_attention(model, settings)
    drop_generation_settings(without_adapters(model))
    if settings.optimiser.sampler == "own":
        check_own_sampler(without_adapters(model), start)
    kind: Any = SharedPromptTrainer if settings.optimiser.shares_prompts else StalePolicyTrainer
    dataset = make_dataset(settings)
    set_threads(settings)

    def start_rollouts(step: int, rows: Mapping[str, Any], trainer: Any) -> None:
        texts = tokenizer.batch_decode(rows["completion_ids"], skip_special_tokens=True)
        reward.start_rollouts(step, rows, texts, trainer.async_loop)

    rollout = RolloutFunction(
        tokenizer,
        settings,
        episodes,
        run_first_rounds=reward.run_first_rounds,
        start_rollouts=start_rollouts,
        schedule=[(row[0]["episode"], row[0]["round"]) for row in dataset["prompt"]],
    )
    trainer = kind(
        model=model,
        reward_funcs=reward,
        args=grpo_config(settings, folder),
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=adapters,
        rollout_func=rollout,
        callbacks=[MetricsCallback(on_metrics)],
    )
    if keeps_frozen_narrow(settings, read_devices(os.environ)):
        narrow_frozen(trainer.model)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ScheduleCallback(trainer, settings))
    trainer.add_callback(MemoryCallback())
    trainer.add_callback(FiniteStepsCallback(trainer))
    if settings.optimiser.staleness:
        rank = int(trainer.accelerator.process_index)
        trainer.add_callback(KeepPendingBatches(rollout.pending, rank))
    return trainer


def _load_start(settings: TrainSettings, start: str) -> tuple[Any, Any, LoraConfig | None]:
    """Return the policy, its tokenizer, and the adapters that TRL must add.

    The adapters are None if none are trained, or if the policy has them already.
    """
    policy = settings.policy
    if policy.lora is None:
        model, tokenizer = load_policy(start, policy.revision)
        freeze_lower_layers(model, policy.upper_layers)
        return model, tokenizer, None
    model, tokenizer = load_to_adapt(start, policy.revision, policy.lora)
    if isinstance(model, PeftModel):
        return model, tokenizer, None
    count_parameters(model.config, policy.lora)  # refuses targets that TRL would not find
    return model, tokenizer, lora_config(policy.lora)


def restore_pending(trainer: Any, settings: TrainSettings, checkpoint: Path | None) -> None:
    """Restore the batches that were pending at the checkpoint; others are written again.

    Either all processes restore their batches or none does, as some engines sample for all
    processes together.
    """
    if checkpoint is None or not settings.optimiser.staleness:
        return
    rank, step = int(trainer.accelerator.process_index), int(checkpoint.name.rpartition("-")[2])
    found = read_pending(pending_file(checkpoint, rank), step, settings.optimiser.staleness)
    counts: list[int] = gather_object([len(found)])
    if found and len(set(counts)) == 1:
        trainer.rollout_func.restore(found, trainer)


def make_dataset(settings: TrainSettings) -> Dataset:
    """Return a row for every group of every step, in order; a second round follows its first.

    Raises:
        ConfigError: a step has too few questions for second rounds, or its groups cannot be divided
            among the processes.
    """
    o = settings.optimiser
    second = settings.recursion.count_second_rounds(o.questions)
    first = o.questions - second
    if problem := question_problem(settings, int(os.environ.get("WORLD_SIZE", "1"))):
        raise ConfigError(problem)
    prompts = [
        [{"role": "user", "content": "", "episode": step * o.questions + at, "round": which}]
        for step in range(o.steps)
        for at in range(first)
        for which in ((0, 1) if at < second else (0,))
    ]
    episodes = [message["episode"] for (message,) in prompts]
    return Dataset.from_dict({"prompt": prompts, "episode": episodes})


def grpo_config(settings: TrainSettings, folder: RunFolder) -> GRPOConfig:
    """Return the settings as TRL's configuration; the defaults are the paper's, section 4.1.

    Raises:
        ConfigError: a step's completions cannot be divided into micro-batches.
    """
    o = settings.optimiser
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if problem := completion_problem(settings, processes):
        raise ConfigError(problem)
    passes = o.questions * o.group // (o.micro_batch * processes)
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder.checkpoints),
        max_steps=o.steps,
        per_device_train_batch_size=o.micro_batch,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        shuffle_dataset=False,
        remove_unused_columns=False,
        use_cpu=not cuda,
        bf16=settings.policy.bf16,
        gradient_checkpointing=o.gradient_checkpointing,
        dataloader_pin_memory=cuda,
        seed=settings.seed,
        logging_steps=1,
        logging_first_step=True,
        save_steps=settings.log.checkpoint_every,
        save_total_limit=_checkpoint_limit(settings),
        report_to=list(settings.log.to) or "none",
        run_name=settings.log.run_name or settings.name,
        log_completions=False,
        disable_tqdm=True,
        disable_dropout=True,
        **_generation_options(o),
        **_descent_options(o),
    )


def _checkpoint_limit(settings: TrainSettings) -> int:
    """Return the most checkpoints to keep, at least two if one of them may be the best.

    With a limit of one, transformers deletes the last checkpoint, from which a training resumes,
    when the training ends and another checkpoint is the best.
    """
    most = settings.log.keep_checkpoints
    return 2 if most == 1 and settings.evaluation.every else most


def _generation_options(o: OptimiserSettings) -> dict[str, Any]:
    return {
        "num_generations": o.group,
        "num_iterations": 1,
        "max_completion_length": o.completion,
        "temperature": o.temperature,
        "top_k": 0,
        "use_vllm": o.sampler.startswith("vllm"),
        "vllm_mode": "server" if o.sampler == "vllm-server" else "colocate",
        "vllm_server_base_url": o.vllm_server if o.sampler == "vllm-server" else None,
        "vllm_gpu_memory_utilization": o.vllm_memory,
        "vllm_enable_sleep_mode": o.vllm_sleep,
        **correction_options(o),
    }


def _descent_options(o: OptimiserSettings) -> dict[str, Any]:
    return {
        "beta": o.kl,
        "epsilon": o.clip,
        "epsilon_high": 1 + o.clip if o.loss == "cispo" else None,  # the ratio's maximum itself
        "loss_type": o.loss,
        "scale_rewards": "group" if o.scale == GROUP_THEN_BATCH else o.scale,
        "entropy_coef": o.entropy,
        "use_adaptive_entropy": o.entropy_target is not None,
        "entropy_target": o.entropy_target or 0.0,
        "entropy_coef_max": max(o.entropy * 5, 0.01),
        "entropy_coef_delta": max(o.entropy / 20, 1e-4),
        "learning_rate": o.learning_rate,
        "lr_scheduler_type": o.schedule,
        "warmup_steps": o.warmup,
        "adam_beta1": o.betas[0],
        "adam_beta2": o.betas[1],
        "weight_decay": o.weight_decay,
        "max_grad_norm": o.max_grad_norm,
    }


class ScheduleCallback(TrainerCallback):
    """Changes the entropy bonus and the scale of advantages from step to step."""

    def __init__(self, trainer: Any, settings: TrainSettings) -> None:
        self._trainer = trainer
        self._settings = settings

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the trainer's options for this step."""
        o, step = self._settings.optimiser, state.global_step
        if o.entropy_last is not None:
            done = step / max(1, state.max_steps - 1)
            self._trainer.entropy_coef = o.entropy + (o.entropy_last - o.entropy) * done
            self._trainer._entropy_bonus_enabled = True  # noqa: SLF001 - False if it begins at 0
        if o.scale == GROUP_THEN_BATCH and step >= self._settings.reward.from_step:
            self._trainer.scale_rewards = "batch"


class FiniteStepsCallback(TrainerCallback):
    """Skips the update of a step with a non-finite gradient, which would turn all weights into NaN.

    The metric `skipped` of that step is 1.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """Skip the update in all processes if one has to: each may see a part of the gradient."""
        learning = [p for p in about["model"].parameters() if p.grad is not None]
        grads = (p.grad for p in learning)
        local_grads = (each.to_local() if isinstance(each, DTensor) else each for each in grads)
        has_bad_grad = torch.tensor(
            [not all(bool(grad.isfinite().all()) for grad in local_grads)]
        ).float()
        accelerator = self._trainer.accelerator
        skipped = bool(accelerator.reduce(has_bad_grad.to(accelerator.device), reduction="sum") > 0)
        self._trainer._metrics["train"]["skipped"].append(float(skipped))  # noqa: SLF001
        if skipped:
            for each in learning:
                each.grad = None


class MemoryCallback(TrainerCallback):
    """Limits how much freed memory the process keeps."""

    def __init__(self) -> None:
        self._memory = MemoryTrimmer()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Return freed memory to the system if there is too much of it."""
        self._memory.trim_growth()


class MetricsCallback(TrainerCallback):
    """Passes the metrics of every step to a listener."""

    def __init__(self, on_metrics: MetricsListener) -> None:
        self._on_metrics = on_metrics

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Pass on the metrics, which TRL logs once a step, with None for non-finite numbers."""
        if logs and "reward" in logs:
            self._on_metrics(finite_figures({"step": int(state.global_step), **logs}))
