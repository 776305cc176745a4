"""A training run's settings: one TOML file, checked before anything is spent."""

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


def _check_weights(mix: dict[str, float]) -> dict[str, float]:
    if mix and not 0 < sum(mix.values()) < inf:
        raise ValueError("the weights of the tasks have no finite sum above 0")
    return mix


Mix = Annotated[dict[str, NonNegativeFloat], AfterValidator(_check_weights)]
"""Weights of the sources of questions."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NetworkSettings(_Section):
    """The size of a policy made from nothing."""

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
                "heads is to be a multiple of kv_heads, and hidden an even multiple of heads"
            )
        return self


class LoraSettings(_Section):
    """Low-rank adapters instead of all weights."""

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: Decay = 0.0
    targets: str | list[str] = "all-linear"


class PolicySettings(_Section):
    """The model that learns."""

    start: str = ""
    """A folder or a hub id of any causal language model; empty: a network made from nothing."""
    network: NetworkSettings = NetworkSettings()
    lora: LoraSettings | None = None
    upper_layers: PositiveInt | None = None
    """So many of the uppermost layers learn and all else stays as it is; None: everything learns.
    On a processor most of the time is the way back through the layers."""
    bf16: bool = False
    """Computes in bfloat16, on a GPU or on a processor that has it (AMX); the weights that the
    optimiser changes stay fp32."""
    revision: str | None = None


class CurriculumStage(_Section):
    """From which step on which mix of tasks is asked."""

    step: NonNegativeInt = 0
    tasks: Mix = Field(default={"rehearsal": 1.0}, min_length=1)
    """Source to weight: `rehearsal[:family][:from-to]`, a JSONL file, or `runs[:store]`."""


class PoolSettings(_Section):
    """Who can be called."""

    source: str = "rehearsal"
    """As `batuta ask --pool`."""
    fewest: PositiveInt | None = None
    """Each question lists a random part of the pool, of this size…"""
    most: PositiveInt | None = None
    """…to this; None: the whole pool."""
    whole: Share = 0.0
    """Share of questions that list the whole pool all the same."""
    permute: bool = False
    """Under other numbers for each question."""
    concurrency: PositiveInt = 256
    """Runs that are executed at the same time."""
    seconds: PositiveFloat | None = None
    """Seconds that a run may take; None: as the pool's own `[limits]` say."""
    max_usd: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars that the training may pay workers, over all its stages and resumptions in the output
    folder: the most that a call can cost is reserved before it is made, and the training ends with
    a checkpoint if too little is left. Several processes have a part each. None: no limit."""
    journal: bool | str = True
    """Keep every finished call, so that none is paid for twice: in the training's folder, or, by
    postgresql://…, where all machines find it."""
    executor: str = "local"
    """Where runs are executed: `local`, `ray`, `ray:local`, `ray:HOST:PORT`."""
    processes: PositiveInt | None = None
    """Of Ray; None: one for each free core."""


class PromptSettings(_Section):
    """What the policy is shown; `PromptOptions`, in the file's words."""

    compact: bool = False
    descriptions: bool = False
    prices: bool = False
    examples: bool = True
    hidden: float = Field(default=0.0, ge=0, lt=1)
    """Share of a question's words that the policy does not get to read in training, so that it does
    not hang on their wording; workers read them all."""

    def rendering(self) -> PromptOptions:
        """The same as the language knows it."""
        return PromptOptions(
            descriptions=self.descriptions,
            prices=self.prices,
            examples=self.examples,
            compact=self.compact,
        )


class RewardSettings(_Section):
    """What a workflow earns."""

    malformed: float = 0.0
    wrong: float = 0.5
    right: float = 1.0
    cost: Literal["none", "tokens", "usd", "calls"] = "none"
    """Charged only when the answer is right."""
    coefficient: NonNegativeFloat = 0.0
    """Reward lost for `unit` tokens, dollars or calls; never more than `ceiling`."""
    unit: PositiveFloat = 1000.0
    ceiling: NonNegativeFloat = 0.4
    from_step: NonNegativeInt = 0
    """Before this step nothing is charged."""
    ramp: PositiveInt = 1
    """Steps in which the charge grows to its full size."""
    by_ease: float = Field(default=0.0, ge=0)
    """The charge is multiplied by this power of the share of its group that is right: what is
    solved anyway shall be cheap, what is hard may cost (adaptive length penalty, Xiang et al.
    2025)."""
    coefficient_later: NonNegativeFloat | None = None
    """`coefficient` in a round after the first; None: the same."""
    executions: PositiveInt = 1
    """How often a workflow is run; its reward is the mean."""
    judge: str | None = None
    """The worker of the pool that grades answers which no rule decides; None: they are worth what
    wrong ones are."""


class RecursionSettings(_Section):
    """Rollouts of a second round beside those of the first (paper, section 3.3)."""

    share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of the groups that are second rounds, at least one of a step where it is not 0; the
    completions of such a group continue from those of the first round of their question."""
    discount: Share = 0.25
    """Weight of the second round's mean reward in the first round's."""

    @property
    def rounds(self) -> int:
        """Rounds that are learned, and so the rounds that the policy is served with."""
        return 2 if self.share else 1

    def count_second_rounds(self, questions: int) -> int:
        """Groups of a step that are second rounds, of so many groups."""
        return max(1, round(questions * self.share)) if self.share else 0


class OptimiserSettings(_Section):
    """How the weights move."""

    steps: PositiveInt = 200
    questions: PositiveInt = 4
    """Of one step, over all processes."""
    group: int = Field(default=64, ge=2)
    """Completions of a question; at least two, as they are compared with each other."""
    micro_batch: PositiveInt = 16
    """Completions of one forward pass on one device."""
    staleness: int = Field(default=0, ge=0, le=16)
    """Steps that the weights may have learned between writing a batch and learning from it: so many
    batches are written ahead while workers answer. 0: each batch is waited for (synchronous)."""
    learning_rate: PositiveFloat = 1e-6
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
    """What advantages are divided by: the spread of rewards in their group (paper) or in the whole
    batch. Once a cost is charged take `batch`: a group that differs only in cost would else vote
    for the cheapest workflow as loudly as one that differs in being right. `group-then-batch`
    changes over at `reward.from_step`; rare successes on hard questions count more before."""
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo"] = "grpo"
    entropy: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    entropy_last: NonNegativeFloat | None = None
    """The bonus moves in a straight line to this weight at the last step; None: it stays."""
    entropy_target: PositiveFloat | None = None
    """Nats a token below which the bonus grows; None: the bonus stays as it is."""
    temperature: PositiveFloat = 1.0
    completion: PositiveInt = 1024
    """Tokens of a completion at most."""
    sampler: Literal["own", "transformers", "vllm-colocate", "vllm-server"] = "transformers"
    """Who generates; `own`: one prefill for all completions of a question, for Qwen2 and Llama."""
    vllm_memory: float = Field(default=0.3, gt=0, le=1)
    """Share of a GPU's memory that a colocated vLLM takes."""
    vllm_sleep: bool = False
    """A colocated vLLM gives its memory back while the weights are moved."""
    vllm_server: str = "http://127.0.0.1:8000"
    correction: Literal["none", "token", "sequence"] = "token"
    """Correction of the loss for vLLM's probabilities, which differ slightly from the trainer's.
    `token` weights each token by the ratio of the two, capped at `correction_limit`; `sequence`
    weights a whole completion by its ratio and leaves it out of the loss above the limit (TRL's own
    default); `none` does neither. `token` is the default because small differences add up over a
    draft of a thousand tokens: the ratio of the whole passes the limit by chance, and long drafts
    would be left out more often than short ones."""
    correction_limit: float = Field(default=3.0, gt=1, allow_inf_nan=False)
    threads: PositiveInt | None = None
    """Of torch, on CPU."""
    gradient_checkpointing: bool = False

    @property
    def scores_drafts(self) -> bool:
        """True if the weights that write a batch ahead also score it for the loss's ratio.

        With a correction for vLLM, TRL forms that ratio from the engine's own probabilities.
        """
        return not self.sampler.startswith("vllm") or self.correction == "none"

    @property
    def shares_prompts(self) -> bool:
        """Whether a step reads a prompt once for all of its completions.

        Gradient checkpointing forgets the prompt's keys and values that they would share.
        """
        return self.sampler == "own" and not self.gradient_checkpointing


class WarmupSettings(_Section):
    """The SFT warm-up: syntax from random workflows."""

    steps: PositiveInt = 1200
    drills: Share = 0.3
    """Share of the steps, at the beginning, on prompts that disclose the whole workflow."""
    batch: PositiveInt = 48
    names: list[str] = []
    """Further names that it learns to write, for workers that may join later."""
    learning_rate: PositiveFloat = 3e-3
    hints: Share = 0.5
    """Share of prompts that disclose facts of the random workflow."""
    revisions: Share = 0.15
    """Share of prompts of a second round."""
    prompt_weight: NonNegativeFloat = 0.3
    """Weight of the loss on the prompt itself; 0: prompts are read once for all their drafts."""
    drafts: PositiveInt = 1
    """Drafts of each prompt in a batch; only without hints and with `prompt_weight` 0."""
    vocabulary: Literal["plain", "free"] = "plain"
    """How steps are worded: in one way each, or in forty ways (for a model that can read)."""


class DistilSettings(_Section):
    """SFT on drafts that were found elsewhere: by a search, or written by hand."""

    steps: PositiveInt = 100
    batch: PositiveInt = 16
    learning_rate: PositiveFloat = 1e-4
    compile: bool = False
    """Compiles the layers, where a C++ compiler is installed: the first steps take a minute longer,
    later ones on a processor a quarter less."""
    minutes: float | None = Field(default=None, gt=0)
    """On a machine that is slower than was thought, steps are left out evenly, so that it ends then
    with a learning rate of 0. None: all steps."""


class RejectionSettings(_Section):
    """Rejection sampling between SFT warm-up and reinforcement learning."""

    rounds: NonNegativeInt = 0
    """How often it samples and fits; 0: this stage is left out."""
    random: NonNegativeInt = 1
    """The first so many rounds draw random workflows, which is what the policy of a SFT warm-up
    writes too and takes a fifth of the time."""
    questions: PositiveInt = 2000
    """Of a round."""
    group: PositiveInt = 16
    """Workflows sampled for each."""
    shorter: float = Field(default=1.0, ge=1)
    """A right workflow is worth this many times less for every call more than the shortest right
    one of its question."""
    stand_ins: bool = False
    """Whoever a workflow calls and its question does not list is replaced by a random one whom it
    lists, before it is run: a policy that has met the whole pool only keeps its workflows while
    it learns who else can do their steps."""
    tasks: Mix = {}
    """Source to weight; empty: those of the curriculum's first stage."""
    steps: PositiveInt = 250
    """Of fitting, in a round."""
    batch: PositiveInt = 48
    learning_rate: PositiveFloat = 1e-3


class EvaluationSettings(_Section):
    """Evaluation during training, on questions that are kept back from it."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations, beside one before the first step and one after the last; 0:
    nothing is evaluated, and the last policy is the result."""
    questions: PositiveInt = 50
    """Number of questions kept back: the training uses neither them nor questions that differ from
    them only in case and punctuation."""
    tasks: Mix = {}
    """Weights of the sources, as in the curriculum; empty: the curriculum's own sources."""
    metric: Literal["right", "reward"] = "right"
    """The metric by which the best checkpoint is chosen."""


class HubSettings(_Section):
    """The place to which the trained policy is uploaded."""

    repo: str = ""
    """OWNER/NAME of a model on the Hugging Face hub, with a token in HF_TOKEN; empty: no upload."""
    private: bool = True
    """True if a newly created model is private."""


class LogSettings(_Section):
    """What is kept of a run."""

    checkpoint_every: PositiveInt = 50
    """Steps, of GRPO, SFT warm-up and distilling."""
    keep_checkpoints: NonNegativeInt = 2
    sample_every: PositiveInt = 10
    """Steps between sampled workflows in samples.jsonl."""
    to: list[Literal["tensorboard", "wandb"]] = []
    run_name: str = ""
    """Name of the run in Weights & Biases; empty: the training's name."""
    wandb_id: str = ""
    """Id of the run to continue there; empty: one that is made and kept in the output folder."""


class TrainSettings(_Section):
    """The whole file."""

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
