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
Decay = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1)]


def _check_weights(mix: dict[str, float]) -> dict[str, float]:
    if mix and not 0 < sum(mix.values()) < inf:
        raise ValueError("the weights of the tasks have no finite sum above 0")
    return mix


Mix = Annotated[dict[str, NonNegativeFloat], AfterValidator(_check_weights)]
"""Sources of questions and their weights."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NetworkSettings(_Section):
    """The size of a policy made from scratch."""

    vocabulary: PositiveInt = 1024
    hidden: PositiveInt = 128
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    inner: PositiveInt = 256
    positions: PositiveInt = 1024

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
    dropout: Decay = 0.0
    targets: str | list[str] = "all-linear"


class PolicySettings(_Section):
    """The model that is trained."""

    start: str = ""
    """A folder or hub id of any causal language model; empty: a network made from scratch."""
    network: NetworkSettings = NetworkSettings()
    lora: LoraSettings | None = None
    upper_layers: PositiveInt | None = None
    """Train only this many of the uppermost layers; None trains everything. On a CPU most of the
    time is spent on the backward pass through the layers."""
    bf16: bool = False
    """Computes in bfloat16, on a GPU or on a CPU that supports it (AMX); the weights that the
    optimiser changes stay in fp32."""
    revision: str | None = None


class CurriculumStage(_Section):
    """A mix of tasks and the first step that uses it."""

    step: NonNegativeInt = 0
    tasks: Mix = Field(default={"rehearsal": 1.0}, min_length=1)
    """Weight of each source: `rehearsal[:family][:from-to]`, a JSONL file, or `runs[:store]`."""


class PoolSettings(_Section):
    """The workers, and which of them each question lists."""

    source: str = "rehearsal"
    """The pool as `batuta ask --pool` names it."""
    fewest: PositiveInt | None = None
    """The smallest size of the random sub-pool that each question lists; None: the whole pool."""
    most: PositiveInt | None = None
    """The largest size of that sub-pool; None: the size of the pool."""
    whole: Share = 0.0
    """Share of questions that list the whole pool nevertheless."""
    permute: bool = False
    """List the workers in another random order for each question."""
    concurrency: PositiveInt = 256
    """Runs that are executed concurrently."""
    seconds: PositiveFloat | None = None
    """Seconds that a run may take; None for the limit in the pool's own `[limits]`."""
    max_usd: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars that the training may pay workers, over all its stages and resumptions in the output
    folder. The highest cost of a call is reserved before it is made, and the training ends with a
    checkpoint if too little is left. Several processes have equal parts. None: no limit."""
    journal: bool | str = True
    """Keep every finished call, so that none is paid twice: in the training's folder, or in the
    database of a postgresql://… URL, which all machines share."""
    executor: str = "local"
    """Where runs are executed: `local`, `ray`, `ray:local`, `ray:HOST:PORT`."""
    processes: PositiveInt | None = None
    """Processes of Ray; None: one for each free core."""


class PromptSettings(_Section):
    """The contents of the policy's prompt; `rendering` returns them as `PromptOptions`."""

    compact: bool = False
    descriptions: bool = False
    prices: bool = False
    examples: bool = True
    hidden: float = Field(default=0.0, ge=0, lt=1)
    """Share of a question's words that are hidden from the policy in training, so that it depends
    less on their wording; workers read all of them."""

    def rendering(self) -> PromptOptions:
        """Return the settings as `PromptOptions`."""
        return PromptOptions(
            descriptions=self.descriptions,
            prices=self.prices,
            examples=self.examples,
            compact=self.compact,
        )


class RewardSettings(_Section):
    """The reward of a workflow."""

    malformed: float = 0.0
    wrong: float = 0.5
    right: float = 1.0
    cost: Literal["none", "tokens", "usd", "calls"] = "none"
    """The kind of cost that is subtracted from the reward of right answers."""
    coefficient: NonNegativeFloat = 0.0
    """Reward lost for `unit` tokens, dollars or calls, up to `ceiling`."""
    unit: PositiveFloat = 1000.0
    ceiling: NonNegativeFloat = 0.4
    from_step: NonNegativeInt = 0
    """The first step at which the cost is charged."""
    ramp: PositiveInt = 1
    """Steps over which the charge grows to its full size."""
    by_ease: float = Field(default=0.0, ge=0)
    """The charge is multiplied by this power of the group's share of right answers: easy questions
    should be solved cheaply, hard ones may cost more (adaptive length penalty, Xiang et al.
    2025)."""
    coefficient_later: NonNegativeFloat | None = None
    """`coefficient` in rounds after the first; None for the same."""
    executions: PositiveInt = 1
    """Executions of each workflow, whose reward is their mean."""
    judge: str | None = None
    """The worker of the pool that grades answers which no rule decides; None: these earn what wrong
    ones earn."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.right <= max(self.wrong, self.malformed):
            raise ValueError("right must be greater than wrong and malformed")
        return self


class RecursionSettings(_Section):
    """Rollouts of second rounds beside those of first rounds (Conductor paper, section 3.3)."""

    share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of the groups that are second rounds, at least one per step if it is not 0; their
    completions continue those of the first round of the same question."""
    discount: Share = 0.25
    """Weight of the second round's mean reward in the first round's."""

    @property
    def rounds(self) -> int:
        """Rounds that are trained, and with which the policy is served."""
        return 2 if self.share else 1

    def count_second_rounds(self, questions: int) -> int:
        """Return how many of a step's groups are second rounds."""
        return max(1, round(questions * self.share)) if self.share else 0


class OptimiserSettings(_Section):
    """The optimiser, the loss, and how completions are sampled."""

    steps: PositiveInt = 200
    questions: PositiveInt = 4
    """Questions of a step, over all processes."""
    group: int = Field(default=64, ge=2)
    """Completions per question; at least two, as they are compared with each other."""
    micro_batch: PositiveInt = 16
    """Completions of one forward pass on one device."""
    staleness: int = Field(default=0, ge=0, le=16)
    """The most optimiser steps between sampling a batch and learning from it; so many batches are
    sampled ahead while workers answer. 0 waits for each batch (synchronous)."""
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
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: NonNegativeFloat = 1.0
    clip: PositiveFloat = 0.2
    kl: NonNegativeFloat = 0.0
    scale: Literal["group", "batch", "none", "group-then-batch"] = "group"
    """The divisor of advantages: the spread of rewards in their group (Conductor paper) or in the
    whole batch. Once a cost is charged choose `batch`: otherwise a group that differs only in cost
    weighs as much as one that differs in correctness. `group-then-batch` switches at
    `reward.from_step`; before it, rare successes on hard questions weigh more."""
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo"] = "grpo"
    entropy: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    entropy_last: NonNegativeFloat | None = None
    """Weight of the entropy bonus at the last step, reached linearly; None: it is constant."""
    entropy_target: PositiveFloat | None = None
    """Nats per token below which the bonus grows; None: the bonus is constant."""
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    completion: PositiveInt = 1024
    """The most tokens of a completion."""
    sampler: Literal["own", "transformers", "vllm-colocate", "vllm-server"] = "transformers"
    """The engine that samples completions; `own` reads a prompt once for all its completions (Qwen2
    and Llama)."""
    vllm_memory: float = Field(default=0.3, gt=0, le=1)
    """Share of a GPU's memory that a colocated vLLM takes."""
    vllm_sleep: bool = False
    """A colocated vLLM frees its memory during the update."""
    vllm_server: str = "http://127.0.0.1:8000"
    correction: Literal["none", "token", "sequence"] = "token"
    """Correction of the loss for vLLM's probabilities, which differ slightly from the trainer's.
    `token` weights each token by the ratio of the two, truncated at `correction_limit`; `sequence`
    weights a whole completion by its ratio and masks it above the limit (TRL's own default); `none`
    does neither. `token` is the default because small differences add up over a draft of a thousand
    tokens: the ratio of the whole then exceeds the limit by chance, and long drafts would be masked
    more often than short ones."""
    correction_limit: float = Field(default=3.0, gt=1, allow_inf_nan=False)
    threads: PositiveInt | None = None
    """Threads of torch on a CPU; None for torch's own choice."""
    gradient_checkpointing: bool = False

    @property
    def scores_drafts(self) -> bool:
        """Whether the weights that write a batch ahead also score it for the loss's ratio.

        With a correction for vLLM, TRL computes that ratio from vLLM's own probabilities.
        """
        return not self.sampler.startswith("vllm") or self.correction == "none"

    @property
    def shares_prompts(self) -> bool:
        """Whether a step reads a prompt once for all of its completions.

        Gradient checkpointing drops the prompt's keys and values that they would share.
        """
        return self.sampler == "own" and not self.gradient_checkpointing


class WarmupSettings(_Section):
    """The SFT warm-up, which teaches the syntax of workflows with random ones."""

    steps: PositiveInt = 1200
    drills: Share = 0.3
    """Share of the steps, the first ones, whose prompts disclose the whole workflow."""
    batch: PositiveInt = 48
    names: list[str] = []
    """Further worker names that the policy learns to write, for workers that may join later."""
    learning_rate: LearningRate = 3e-3
    hints: Share = 0.5
    """Share of prompts that disclose facts of the random workflow."""
    revisions: Share = 0.15
    """Share of prompts that belong to a second round."""
    prompt_weight: NonNegativeFloat = 0.3
    """Weight of the loss on the prompt itself; with 0 a prompt is read once for all its drafts."""
    drafts: PositiveInt = 1
    """Drafts of each prompt in a batch; only without hints and with `prompt_weight` 0."""
    vocabulary: Literal["plain", "free"] = "plain"
    """How subtasks are worded: each in one way, or in forty ways (for a model that can already
    read)."""


class DistilSettings(_Section):
    """SFT on drafts that were found by a search or written by hand."""

    steps: PositiveInt = 100
    batch: PositiveInt = 16
    learning_rate: LearningRate = 1e-4
    compile: bool = False
    """Compile the layers if a C++ compiler is installed: the first steps take a minute longer,
    later ones on a CPU a quarter less."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes after which the fit ends: on a slow machine steps are skipped evenly, so that the
    learning rate still falls to 0. None runs all steps."""


class RejectionSettings(_Section):
    """Rejection sampling between the SFT warm-up and reinforcement learning."""

    rounds: NonNegativeInt = 0
    """Rounds of sampling and fitting; 0 skips this stage."""
    random: NonNegativeInt = 1
    """The number of initial rounds that draw random workflows, like those that the policy of an SFT
    warm-up writes, in a fifth of the time."""
    questions: PositiveInt = 2000
    """Questions per round."""
    group: int = Field(default=16, ge=2)
    """Workflows sampled for each question; at least two, as one alone has no weight."""
    shorter: float = Field(default=1.0, ge=1)
    """A right workflow's weight is divided by this factor for every call beyond the shortest right
    one of its question."""
    stand_ins: bool = False
    """Replace each worker that a workflow calls and its question does not list by a random listed
    one, before the workflow is run: a policy trained on the whole pool then keeps its workflows
    while it learns which other workers can do their steps."""
    tasks: Mix = {}
    """Weight of each source; empty: the sources of the curriculum's first stage."""
    steps: PositiveInt = 250
    """Optimiser steps of each round's fit."""
    batch: PositiveInt = 48
    learning_rate: LearningRate = 1e-3


class EvaluationSettings(_Section):
    """Evaluation during training, on held-out questions."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations, besides one before the first step and one after the last; 0: no
    evaluation, and the last policy is the result."""
    questions: PositiveInt = 50
    """The number of held-out questions: the training uses neither them nor questions that differ
    from them only in case and punctuation."""
    tasks: Mix = {}
    """Weights of the sources, as in the curriculum; empty: the curriculum's own sources."""
    metric: Literal["right", "reward"] = "right"
    """The metric by which the best checkpoint is chosen."""


class HubSettings(_Section):
    """The hub repository to which the trained policy is uploaded."""

    repo: str = ""
    """OWNER/NAME of a model on the Hugging Face hub, with a token in HF_TOKEN; empty: no upload."""
    private: bool = True
    """True if a newly created model is private."""


class LogSettings(_Section):
    """The checkpoints and records of a run."""

    checkpoint_every: PositiveInt = 50
    """Steps between checkpoints of GRPO, SFT warm-up and distilling."""
    keep_checkpoints: NonNegativeInt = 2
    sample_every: PositiveInt = 10
    """Steps between two samples of workflows in samples.jsonl."""
    to: list[Literal["tensorboard", "wandb"]] = []
    run_name: str = ""
    """Name of the run in Weights & Biases; empty for the training's name."""
    wandb_id: str = ""
    """Id of the run to continue there; empty: a new one, which is stored in the output folder."""


class TrainSettings(_Section):
    """All settings of a training."""

    name: str = "conductor"
    seed: NonNegativeInt = 1
    output: Path = Path("runs/conductor")
    policy: PolicySettings = PolicySettings()
    curriculum: list[CurriculumStage] = Field(default=[CurriculumStage()], min_length=1)
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
