"""A training's settings: one TOML file, checked before anything is spent."""

from __future__ import annotations

from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from batuta.language import PromptOptions

Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1)]


def _check_weights(mix: dict[str, float]) -> dict[str, float]:
    if mix and not 0 < sum(mix.values()) < inf:
        raise ValueError("the weights of the tasks must have a finite sum above 0")
    return mix


Mix = Annotated[dict[str, NonNegativeFloat], AfterValidator(_check_weights)]
"""Weight of each source of questions."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NetworkSettings(_Section):
    """The size of a policy made from scratch, a Qwen2."""

    vocabulary: PositiveInt = 1024
    """Maximum number of tokens of the tokenizer."""
    hidden: PositiveInt = 128
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    inner: PositiveInt = 256
    """Width of the MLP."""
    positions: PositiveInt = 1024
    """Maximum tokens of a prompt with its completion."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.heads % self.kv_heads or self.hidden % (2 * self.heads):
            raise ValueError(
                "heads must be a multiple of kv_heads, and hidden an even multiple of heads"
            )
        return self


class LoraSettings(_Section):
    """LoRA adapters, trained instead of all weights."""

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: ShareBelowOne = 0.0
    targets: str | list[str] = "all-linear"
    """The layers that get adapters, as PEFT names them."""


class PolicySettings(_Section):
    """The model that is trained."""

    start: str = ""
    """A folder or hub id of a causal language model; empty: the SFT warm-up makes a network."""
    network: NetworkSettings = NetworkSettings()
    lora: LoraSettings | None = None
    upper_layers: PositiveInt | None = None
    """Train only this many of the uppermost layers, and the last norm; None trains everything. With
    `lora` it is ignored. On a CPU most of the time is spent on the backward pass through the
    layers."""
    bf16: bool = False
    """Computes in bfloat16, on a GPU or a CPU that supports it; trained weights stay fp32."""
    revision: str | None = None
    """The revision of a hub id; None: the latest."""


class CurriculumStage(_Section):
    """A mix of tasks and the first step that uses the mix."""

    step: NonNegativeInt = 0
    tasks: Mix = Field(default={"rehearsal": 1.0}, min_length=1)
    """Weight of each source: `rehearsal[:family][:from-to]` and `world2[:family][:from-to]`, with
    difficulties from 1 to 6, a benchmark, a JSONL file, or `runs[:store]`."""


def _order_stages(stages: list[CurriculumStage]) -> list[CurriculumStage]:
    return sorted(stages, key=lambda stage: stage.step)


class PoolSettings(_Section):
    """The workers, and the selection of workers that each question lists."""

    source: str = "rehearsal"
    """The pool as `batuta ask --pool` names it."""
    fewest: PositiveInt | None = None
    """Minimum size of the random sub-pool that each question lists; None: the whole pool."""
    most: PositiveInt | None = None
    """Maximum size of the random sub-pool; None: the size of the pool."""
    whole: Share = 0.0
    """Share of questions that list the whole pool even if `fewest` is set."""
    permute: bool = False
    """Lists the workers in a random order, drawn for each question."""
    concurrency: PositiveInt = 256
    """Maximum number of concurrent runs of each training process."""
    seconds: PositiveFloat | None = None
    """Maximum seconds of a run; None: the limit in the pool's own `[limits]`."""
    max_usd: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars that the training may pay workers, over all its stages and resumptions in the output
    folder. The maximum cost of a call is reserved before the call, and the training ends with a
    checkpoint if too little remains. Each process has an equal part. None: no limit."""
    journal: bool | str = True
    """Keeps every finished call, so that no call is paid twice: in the training's folder (true), or
    in the database of a postgresql://… URL, which all machines share. False keeps none."""
    executor: str = "local"
    """Where runs are executed: `local`, `ray`, `ray:local` or `ray:HOST:PORT`."""
    processes: PositiveInt | None = None
    """Number of processes of Ray; None: one for each free core."""


class PromptSettings(_Section):
    """The contents of the policy's prompt; `PromptOptions` describes all except `hidden`."""

    compact: bool = False
    descriptions: bool = False
    prices: bool = False
    examples: bool = True
    hidden: float = Field(default=0.0, ge=0, lt=1)
    """Mean share of a question's words that are hidden from the policy in training, so that the
    policy depends less on the wording; workers read all words."""

    def rendering(self) -> PromptOptions:
        """Return the settings as `PromptOptions`."""
        return PromptOptions(**self.model_dump(exclude={"hidden"}))


class RewardSettings(_Section):
    """The reward of a workflow."""

    malformed: float = 0.0
    """Reward of a draft that is not a workflow."""
    wrong: float = 0.5
    """Reward of a workflow with a wrong answer or none."""
    right: float = 1.0
    """Reward of a workflow with a correct answer, before its cost; a partly correct answer earns a
    reward between `wrong` and `right`."""
    cost: Literal["none", "tokens", "usd", "calls"] = "none"
    """The kind of cost that is subtracted from the reward of correct answers."""
    coefficient: NonNegativeFloat = 0.0
    """Reward lost for each `unit` of cost, up to `ceiling`."""
    unit: PositiveFloat = 1000.0
    """Tokens, dollars or calls that cost `coefficient`."""
    ceiling: NonNegativeFloat = 0.4
    """Maximum reward lost to the cost."""
    from_step: NonNegativeInt = 0
    """The first step at which the cost is charged."""
    ramp: PositiveInt = 1
    """Number of steps over which the charge grows to its full size."""
    by_ease: float = Field(default=0.0, ge=0)
    """The charge is multiplied by the group's accuracy to this power: hard questions may cost more
    than easy ones (adaptive length penalty, Xiang et al. 2025). 0: all are charged alike."""
    coefficient_later: NonNegativeFloat | None = None
    """`coefficient` of second rounds; None: the same as for first rounds."""
    executions: PositiveInt = 1
    """Number of executions of each workflow; its reward is the mean over them."""
    judge: str | None = None
    """The worker that grades answers which no rule decides; None: such answers count as wrong."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.right <= max(self.wrong, self.malformed):
            raise ValueError("right must be greater than wrong and malformed")
        return self


class RecursionSettings(_Section):
    """Rollouts of second rounds, besides first rounds (Conductor paper, section 3.3)."""

    share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of a step's groups that are second rounds, at least one group unless 0; their
    completions continue those of the first round of the same question."""
    discount: Share = 0.25
    """Weight of the mean reward of second rounds in the reward of their first round."""

    @property
    def rounds(self) -> int:
        """Maximum number of rounds in training and when the policy serves."""
        return 2 if self.share else 1

    def count_second_rounds(self, questions: int) -> int:
        """Return how many of a step's groups are second rounds."""
        return max(1, min(round(questions * self.share), questions // 2)) if self.share else 0


class OptimiserSettings(_Section):
    """The optimiser, the loss, and how completions are sampled."""

    steps: PositiveInt = 200
    questions: PositiveInt = 4
    """Groups of a step, over all processes; second rounds share the questions of first rounds."""
    group: int = Field(default=64, ge=2)
    """Completions in a group; at least two, as they are compared with each other."""
    micro_batch: PositiveInt = 16
    """Completions of one forward pass on one device."""
    staleness: int = Field(default=0, ge=0, le=16)
    """Maximum number of optimiser steps between sampling a batch and learning from it, and number
    of batches that are sampled ahead while workers answer. 0 waits for each batch (synchronous)."""
    learning_rate: LearningRate = 1e-6
    schedule: Literal[
        "constant",
        "constant_with_warmup",
        "cosine",
        "cosine_with_restarts",
        "inverse_sqrt",
        "linear",
        "polynomial",
    ] = "cosine"
    warmup: NonNegativeFloat = 0.03
    """Steps over which the learning rate rises; below 1, their share of all steps."""
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: NonNegativeFloat = 1.0
    clip: PositiveFloat = 0.2
    """Distance from 1 at which the ratio of new to old probabilities is clipped (PPO's epsilon);
    `cispo` clips only ratios above 1."""
    kl: NonNegativeFloat = 0.0
    """Weight of the KL penalty against the initial policy (TRL's `beta`)."""
    scale: Literal["group", "batch", "none", "group-then-batch"] = "group"
    """The divisor of advantages: the standard deviation of rewards in the group (Conductor paper)
    or in the whole batch, or 1 (`none`). Choose `batch` once a cost is charged: with `group`, a
    group that differs only in cost weighs as much as a group that differs in correctness.
    `group-then-batch` switches at `reward.from_step`; before that step, rare successes on hard
    questions weigh more."""
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo"] = "grpo"
    """TRL's `loss_type`."""
    entropy: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    entropy_last: NonNegativeFloat | None = None
    """Weight of the entropy bonus at the last step, reached linearly; None: constant weight."""
    entropy_target: PositiveFloat | None = None
    """Entropy in nats per token up to which the bonus is paid and its weight grows each step; above
    it no bonus is paid and the weight falls. None: the bonus does not depend on the entropy."""
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    completion: PositiveInt = 1024
    """Maximum number of tokens of a completion."""
    sampler: Literal["own", "transformers", "vllm-colocate", "vllm-server"] = "transformers"
    """The engine that samples completions; `own` reads a prompt once for all of its completions,
    and supports Qwen2 and Llama."""
    vllm_memory: float = Field(default=0.3, gt=0, le=1)
    """Share of a GPU's memory that a colocated vLLM takes."""
    vllm_sleep: bool = False
    """Frees a colocated vLLM's memory during the update."""
    vllm_server: str = "http://127.0.0.1:8000"
    """Address of the server if `sampler` is `vllm-server`."""
    correction: Literal["none", "token", "sequence"] = "token"
    """Importance-sampling correction of the loss for vLLM's probabilities, which differ slightly
    from the trainer's. `token` weights each token by the ratio of the two probabilities, truncated
    at `correction_limit`; `sequence` weights a whole completion by its ratio, and masks a
    completion above the limit (TRL's own default); `none` does neither. `token` is the default
    because small differences add up over a draft of a thousand tokens: the ratio of the whole draft
    exceeds the limit by chance, so long drafts would be masked more often than short ones."""
    correction_limit: float = Field(default=3.0, gt=1, allow_inf_nan=False)
    threads: PositiveInt | None = None
    """Number of torch's threads on a CPU; None: torch chooses."""
    gradient_checkpointing: bool = False

    @property
    def scores_drafts(self) -> bool:
        """True if the policy that samples a batch ahead also computes its log-probabilities.

        With a correction for vLLM they are not needed: TRL corrects by the probabilities that vLLM
        reports, which are those of the same weights.
        """
        return not self.sampler.startswith("vllm") or self.correction == "none"

    @property
    def shares_prompts(self) -> bool:
        """True if a step reads a prompt once for all of its completions.

        Gradient checkpointing drops the prompt's keys and values that completions would share.
        """
        return self.sampler == "own" and not self.gradient_checkpointing


class WarmupSettings(_Section):
    """The SFT warm-up, which teaches the syntax of workflows with random workflows."""

    steps: PositiveInt = 1200
    drills: Share = 0.3
    """Share of the steps, the first ones, whose prompts disclose the workflow or its workers."""
    batch: PositiveInt = 48
    """Examples of a step."""
    names: list[Annotated[str, Field(min_length=1)]] = []
    """Further worker names that the policy learns to write, for workers that may join later."""
    learning_rate: LearningRate = 3e-3
    hints: Share = 0.5
    """Share of first-round prompts that disclose facts of the random workflow."""
    revisions: Share = 0.15
    """Share of second rounds among the batches after the first drills; without effect unless the
    workers are simulated."""
    prompt_weight: NonNegativeFloat = 0.3
    """Weight of the loss on the prompt itself; with 0 a prompt is read once for all its drafts."""
    drafts: PositiveInt = 1
    """Drafts of each prompt, if `vocabulary` is `free`; set `prompt_weight` to 0, so that their
    prompt is read once."""
    vocabulary: Literal["plain", "free"] = "plain"
    """Wording of subtasks: one for each (`plain`), or a random one of many (`free`, for a model
    that can already read). With `free`, `hints` and `revisions` have no effect."""


class DistilSettings(_Section):
    """SFT on drafts that were found by a search or written by hand."""

    steps: PositiveInt = 100
    batch: PositiveInt = 16
    learning_rate: LearningRate = 1e-4
    compile: bool = False
    """Compiles the layers if there is a GPU or a C++ compiler: the first steps take a minute more,
    later steps on a CPU a quarter less."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which the fit ends: on a slow machine steps are skipped evenly, so that the
    learning rate still falls to 0. None: all steps are run."""


class RejectionSettings(_Section):
    """Rejection sampling between the SFT warm-up and reinforcement learning."""

    rounds: NonNegativeInt = 0
    """Number of rounds of sampling and fitting; 0 skips this stage."""
    random: NonNegativeInt = 1
    """Number of rounds, the first ones, that draw random workflows instead of sampling the policy.
    After the SFT warm-up these are alike, and a random draw takes a fifth of the time."""
    questions: PositiveInt = 2000
    """Questions per round."""
    group: int = Field(default=16, ge=2)
    """Workflows sampled for each question; at least two, as a single workflow has no weight."""
    shorter: float = Field(default=1.0, ge=1)
    """Divides the weight of a correct workflow for each call beyond those of the question's
    shortest correct workflow."""
    stand_ins: bool = False
    """Replaces workers that a question does not list by random listed workers before a workflow is
    run: a policy trained on the whole pool then keeps its workflows while it learns which other
    workers can do their steps."""
    tasks: Mix = {}
    """Weight of each source; empty: the sources of the curriculum's first stage."""
    steps: PositiveInt = 250
    """Optimiser steps of each round's fit."""
    batch: PositiveInt = 48
    learning_rate: LearningRate = 1e-3


class EvaluationSettings(_Section):
    """Evaluation during training, on held-out questions."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; the policy is also evaluated before the first step and after the
    last. 0: no evaluation, and the last policy is the result."""
    questions: PositiveInt = 50
    """Maximum number of held-out questions. The training does not use them, nor questions that
    differ from them only in case, spaces and punctuation."""
    tasks: Mix = {}
    """Weights of the sources, as in the curriculum; empty: the curriculum's own sources."""
    metric: Literal["right", "reward"] = "right"
    """The metric by which the best checkpoint is chosen."""


class HubSettings(_Section):
    """The hub repository to which the trained policy is uploaded."""

    repo: str = ""
    """OWNER/NAME of a model on the Hugging Face hub, which needs a token; empty: no upload."""
    private: bool = True
    """Makes a newly created model private."""


class LogSettings(_Section):
    """The checkpoints and records of a run."""

    checkpoint_every: PositiveInt = 50
    """Steps between checkpoints of GRPO, SFT warm-up and distilling."""
    keep_checkpoints: NonNegativeInt = 2
    """Maximum number of checkpoints of GRPO, the latest and the best included, which are always
    kept; 0 keeps all."""
    sample_every: PositiveInt = 10
    """Steps between two samples of workflows in samples.jsonl."""
    to: list[Literal["tensorboard", "wandb"]] = []
    run_name: str = ""
    """Name of the run in Weights & Biases; empty: the training's name."""
    wandb_id: str = ""
    """Id of a Weights & Biases run to continue; empty: a new id, which the output folder keeps."""


class TrainSettings(_Section):
    """All settings of a training."""

    name: str = "conductor"
    seed: NonNegativeInt = 1
    output: Path = Path("runs/conductor")
    policy: PolicySettings = PolicySettings()
    curriculum: Annotated[list[CurriculumStage], AfterValidator(_order_stages)] = Field(
        default=[CurriculumStage()], min_length=1
    )
    """The stages, sorted by `step`; the first begins at step 0."""
    pool: PoolSettings = PoolSettings()
    prompt: PromptSettings = PromptSettings()
    reward: RewardSettings = RewardSettings()
    recursion: RecursionSettings = RecursionSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    warmup: WarmupSettings = WarmupSettings()
    distil: DistilSettings = DistilSettings()
    rejection: RejectionSettings = RejectionSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    hub: HubSettings = HubSettings()
    log: LogSettings = LogSettings()
