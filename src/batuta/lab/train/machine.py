"""Estimates a training's memory, and finds what the machine lacks, without loading weights.

The bytes of weights, gradients and Adam's two moments are exact. Those of activations are estimated
from the tensors that a Qwen2 decoder layer keeps for its backward pass, per token.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import requires, version
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from huggingface_hub.errors import StrictDataclassError
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, Qwen2Config

from batuta.distribution import package_hint
from batuta.environment import host_memory
from batuta.errors import ConfigError
from batuta.lab.task_sources import REHEARSAL, WORLD2
from batuta.lab.train.adapters import add_adapters, find_adapters
from batuta.lab.train.device import freeze_lower_layers, linear_weights
from batuta.lab.train.settings import LoraSettings, NetworkSettings, TrainSettings

FP32, BF16 = 4, 2
"""Bytes per number."""
GIB = 2**30
_EXTRAS = {"vllm": "'trl[vllm]'"}
"""The requirement to install instead of a package: TRL supports only some versions of vLLM."""
KNOWN_ARCHITECTURES = {
    "Qwen/Qwen2.5-7B-Instruct": Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
}
"""Architectures known without a download."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The processes and machines of a training, and where its weights are."""

    processes: int = 1
    """Processes of the whole training, one for each device."""
    local_processes: int = 1
    """Processes on this machine."""
    sharded: bool = False
    """True if weights, gradients and moments are divided among the processes."""
    offloaded: bool = False
    """True if weights, gradients and moments stay in the host's memory."""

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return -(-self.processes // max(1, self.local_processes))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The bytes that a training needs on one device, and the number of parameters."""

    parameters: int
    trainable: int
    """Number of parameters that are trained, adapters included."""
    weights: int
    gradients: int
    moments: int
    """Bytes of Adam's two moments, in fp32."""
    working_copy: int
    """Bytes of the bf16 copy of the weights, used in matrix products."""
    activations: int
    generation: int
    """Bytes that generation needs; with a colocated vLLM, vLLM's share of the device, or 0 if the
    device's memory is unknown."""
    generation_stays: bool
    """True if that memory stays occupied during the update: a colocated vLLM that never sleeps."""
    host: int
    """Bytes of weights, gradients and moments in the host's memory, for each device; 0 unless they
    are offloaded."""

    @property
    def total(self) -> int:
        """The greatest number of bytes on the device at any time."""
        held = self.weights + self.moments + self.working_copy
        learning = self.gradients + self.activations
        if self.generation_stays:
            return held + learning + self.generation
        return held + max(learning, self.generation)


def read_architecture(start: str, revision: str | None = None) -> PreTrainedConfig | None:
    """Return the architecture of a folder or hub id without using the network; None if unknown.

    For adapters, the architecture of their base model is returned.

    Raises:
        ConfigError: the adapters name no base model, or one that is itself an adapter.
    """
    if saved := find_adapters(start, revision, local_only=True):
        start, revision = saved.base, saved.config.revision
    try:
        found: Any = AutoConfig.from_pretrained(start, revision=revision, local_files_only=True)
    except (OSError, ValueError, StrictDataclassError):
        return KNOWN_ARCHITECTURES.get(start)
    return found


def new_architecture(network: NetworkSettings, **tokens: Any) -> Qwen2Config:
    """Return the architecture of a network made from scratch.

    Args:
        network: the sizes.
        tokens: ids of special tokens, such as `eos_token_id`.
    """
    return Qwen2Config(
        vocab_size=network.vocabulary,
        hidden_size=network.hidden,
        intermediate_size=network.inner,
        num_hidden_layers=network.layers,
        num_attention_heads=network.heads,
        num_key_value_heads=network.kv_heads,
        max_position_embeddings=network.positions,
        tie_word_embeddings=True,
        **tokens,
    )


def keeps_frozen_narrow(settings: TrainSettings, devices: Devices) -> bool:
    """Return whether frozen matrices are stored in bf16; shards must all have one dtype."""
    policy = settings.policy
    return policy.bf16 and policy.lora is not None and not devices.sharded


class ParameterCount(NamedTuple):
    """The number of parameters of a network, adapters included."""

    total: int
    trained: int
    frozen: int
    """Parameters in linear layers that are not trained."""


def count_parameters(
    config: PreTrainedConfig, lora: LoraSettings | None = None, upper_layers: int | None = None
) -> ParameterCount:
    """Count the parameters of a network of which adapters, or the upper layers, are trained.

    Without both, all parameters are trained.

    Raises:
        ConfigError: there is no causal language model of that architecture, no layer of it matches
            `lora.targets`, or its layers cannot be frozen.
    """
    with torch.device("meta"):
        bare = _new_network(config)
        model: torch.nn.Module = add_adapters(bare, lora) if lora else bare
        if lora is None:
            freeze_lower_layers(model, upper_layers)
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, learns in sizes if learns)
    frozen = sum(w.numel() for w in linear_weights(model) if not w.requires_grad)
    return ParameterCount(sum(size for size, _ in sizes), trained, frozen)


def _new_network(config: PreTrainedConfig) -> Any:
    """Return a causal language model of that architecture.

    Raises:
        ConfigError: there is none, or the sizes do not belong together.
    """
    try:
        return AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError):
        raise ConfigError(
            f"the {config.model_type} model in {config.name_or_path} is no causal language model "
            "that transformers can build; set policy.start to one, or correct its config.json"
        ) from None


def estimate_memory(
    settings: TrainSettings,
    config: PreTrainedConfig,
    prompt_tokens: int,
    devices: Devices,
    *,
    device_bytes: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a training step with the longest completions.

    `device_bytes` is the memory of one device, of which a colocated vLLM takes a share; None if it
    is unknown.

    Raises:
        ConfigError: as for `count_parameters`.
    """
    o, policy = settings.optimiser, settings.policy
    numbers = count_parameters(config, policy.lora, policy.upper_layers)
    shards = devices.processes if devices.sharded else 1
    trained_bytes = FP32 * numbers.trained // shards
    held = [FP32 * numbers.total // shards, trained_bytes, 2 * trained_bytes]
    if keeps_frozen_narrow(settings, devices):
        held[0] -= (FP32 - BF16) * numbers.frozen
    weights, gradients, moments = (0, 0, 0) if devices.offloaded else held
    return MemoryEstimate(
        parameters=numbers.total,
        trainable=numbers.trained,
        weights=weights,
        gradients=gradients,
        moments=moments,
        working_copy=_working_copy_bytes(settings, config, numbers, devices),
        activations=_activation_bytes(settings, config, prompt_tokens, devices),
        generation=_generation_bytes(
            settings, config, prompt_tokens, devices, device_bytes=device_bytes
        ),
        generation_stays=o.sampler == "vllm-colocate" and not o.vllm_sleep,
        host=sum(held) if devices.offloaded else 0,
    )


def _working_copy_bytes(
    settings: TrainSettings, config: PreTrainedConfig, numbers: ParameterCount, devices: Devices
) -> int:
    """Return the bytes of the bf16 copy of the weights, beside the fp32 weights.

    Sharded weights are gathered for about two layers at a time. Autocast keeps a copy of the
    trained weights for the whole pass; weights that adapters leave frozen are stored in bf16, and
    those of frozen lower layers are copied only while they are used.
    """
    if not settings.policy.bf16:
        return 0
    if devices.sharded:
        return 2 * BF16 * numbers.total // _config_size(config, "num_hidden_layers")
    return BF16 * numbers.trained


def _activation_bytes(
    settings: TrainSettings, config: PreTrainedConfig, prompt_tokens: int, devices: Devices
) -> int:
    """Return the bytes that the forward pass of one micro-batch keeps for its backward pass."""
    o, policy = settings.optimiser, settings.policy
    hidden, every = _config_size(config, "hidden_size"), _config_size(config, "num_hidden_layers")
    layers = min(every, (None if policy.lora else policy.upper_layers) or every)
    shared = o.shares_prompts
    groups = max(1, o.micro_batch // o.group)
    tokens = (groups if shared else o.micro_batch) * prompt_tokens + o.micro_batch * o.completion
    size = BF16 if policy.bf16 else FP32
    inside = 4 * _inner_width(config) + 2 * kv_width(config)
    layer = 8 * FP32 * hidden + size * inside
    if o.gradient_checkpointing:
        stream = size if devices.sharded else FP32  # autocast computes the residual stream in fp32
        return tokens * (layers * stream * hidden + layer)
    if not shared:
        return tokens * layers * layer
    logits = 2 * FP32 * _config_size(config, "vocab_size") * o.micro_batch * o.completion
    # each completion attends to its own copy of the shared prompt's keys and values
    spread = 2 * size * hidden * every * o.micro_batch * prompt_tokens
    return tokens * layers * layer + logits + spread


def _generation_bytes(
    settings: TrainSettings,
    config: PreTrainedConfig,
    prompt_tokens: int,
    devices: Devices,
    *,
    device_bytes: int | None,
) -> int:
    """Return the bytes of a step's keys and values and of prompt reading, or vLLM's share."""
    o = settings.optimiser
    if o.sampler == "vllm-server":
        return 0
    if o.sampler == "vllm-colocate":
        return int(o.vllm_memory * (device_bytes or 0))
    questions = o.questions / devices.processes
    prompts = questions if o.sampler == "own" else questions * o.group
    tokens = prompts * prompt_tokens + questions * o.group * o.completion
    layers = _config_size(config, "num_hidden_layers")
    size = BF16 if settings.policy.bf16 else FP32
    reading = 3 * size * _inner_width(config) * prompts * prompt_tokens
    return int(2 * FP32 * layers * kv_width(config) * tokens + reading)


def kv_width(config: PreTrainedConfig) -> int:
    """Return the width of a token's keys in one layer, which is that of its values too.

    It is 0 for a network without attention, such as Mamba.
    """
    heads: int | None = getattr(config.get_text_config(), "num_attention_heads", None)
    if heads is None:
        return 0
    kept = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(getattr(config, "head_dim", None) or _config_size(config, "hidden_size") // heads)
    return kept * width


def _inner_width(config: PreTrainedConfig) -> int:
    """Return the inner width of a feed-forward layer, by default four times the hidden size.

    Only some architectures call it `intermediate_size`; the others usually have the default.
    """
    named: int | None = getattr(config.get_text_config(), "intermediate_size", None)
    return named or 4 * _config_size(config, "hidden_size")


def _config_size(config: PreTrainedConfig, name: str) -> int:
    text: Any = config.get_text_config()
    return int(getattr(text, name))


def read_devices(environ: Mapping[str, str]) -> Devices:
    """Read processes and sharding from the environment that `accelerate launch` sets."""
    sharded = any(environ.get(f"ACCELERATE_USE_{how}") == "true" for how in ("FSDP", "DEEPSPEED"))
    offloaded = sharded and environ.get("FSDP_OFFLOAD_PARAMS") == "true"
    processes = int(environ.get("WORLD_SIZE", "1"))
    here = int(environ.get("LOCAL_WORLD_SIZE", str(processes)))
    return Devices(processes=processes, local_processes=here, sharded=sharded, offloaded=offloaded)


def needs_gpu(settings: TrainSettings) -> bool:
    """Return whether the settings need a GPU: vLLM does; bf16 does not, as some CPUs support it."""
    return settings.optimiser.sampler.startswith("vllm")


def device_memory(settings: TrainSettings) -> tuple[int | None, str]:
    """Return the bytes of memory of one device, and a description of the device.

    The device is a GPU, else this machine; None: the settings need a GPU and there is none.
    """
    if torch.cuda.is_available():
        about: Any = torch.cuda.get_device_properties(0)
        return int(about.total_memory), f"of one {about.name}"
    if needs_gpu(settings):
        return None, "there is no GPU here"
    return host_memory(), "of this machine"


def missing_extras(settings: TrainSettings) -> list[str]:
    """Return a sentence for each needed package that is missing or has an unsupported version."""
    wanted = {"peft": settings.policy.lora is not None}
    wanted["vllm"] = settings.optimiser.sampler.startswith("vllm")
    wanted |= {name: name in settings.log.to for name in ("tensorboard", "wandb")}
    found = [
        f"{name} is not installed and the settings need it; "
        + package_hint(_EXTRAS.get(name, name))
        for name, needed in wanted.items()
        if needed and find_spec(name) is None
    ]
    if wanted["vllm"] and find_spec("vllm") is not None:
        found += filter(None, [vllm_problem(version("vllm"))])
    return found


def supported_vllm() -> SpecifierSet:
    """Return the vLLM versions that the installed TRL supports; all if TRL names none."""
    for line in requires("trl") or ():
        named = Requirement(line)
        if named.name == "vllm" and named.marker and named.marker.evaluate({"extra": "vllm"}):
            return named.specifier
    return SpecifierSet()


def vllm_problem(installed: str) -> str | None:
    """Return why TRL cannot work with that version of vLLM; None if it can."""
    supported = supported_vllm()
    if supported.contains(Version(installed).base_version, prereleases=True):
        return None
    hint = package_hint(_EXTRAS["vllm"])
    return f"vllm {installed} is installed and TRL {version('trl')} needs vllm{supported}; {hint}"


def divisibility_problems(settings: TrainSettings, processes: int) -> list[str]:
    """Return the sentences of `question_problem` and `completion_problem`."""
    problems = question_problem(settings, processes), completion_problem(settings, processes)
    return [*filter(None, problems)]


def question_problem(settings: TrainSettings, processes: int) -> str | None:
    """Return a sentence if a step's questions are too few or cannot be divided, else None.

    Each of several processes has whole pairs of a first round and its second round.
    """
    questions = settings.optimiser.questions
    if settings.recursion.share and questions == 1:
        return "recursion.share needs at least two optimiser.questions a step"
    has_pairs = processes > 1 and settings.recursion.share > 0
    if not questions % (2 * processes if has_pairs else processes):
        return None
    pairs = " in pairs of a first and a second round" if has_pairs else ""
    return f"optimiser.questions = {questions} cannot be divided among {processes} processes{pairs}"


def completion_problem(settings: TrainSettings, processes: int) -> str | None:
    """Return a sentence if a step's completions cannot be divided into micro-batches, else None."""
    o = settings.optimiser
    if not (o.questions * o.group) % (o.micro_batch * processes):
        return None
    return (
        f"optimiser.questions x group = {o.questions * o.group} completions cannot be divided "
        f"into micro-batches of {o.micro_batch} on {processes} processes"
    )


def hardware_problems(settings: TrainSettings, devices: Devices) -> list[str]:
    """Return a sentence if GPUs are missing, and one for each setting that cannot work here."""
    o, found = settings.optimiser, list[str]()
    cuda = torch.cuda.device_count()
    if needs_gpu(settings) and cuda < devices.local_processes:
        have = f"only {cuda}" if cuda else "none"
        found.append(
            f'optimiser.sampler = "{o.sampler}" needs a GPU for each process, and this machine has '
            f"{have}"
        )
    if settings.recursion.share and not settings.pool.journal:
        found.append("recursion runs first rounds again from the journal; set pool.journal = true")
    return found + node_problems(settings, devices)


def node_problems(settings: TrainSettings, devices: Devices) -> list[str]:
    """Return a sentence for each thing that prevents several machines from training together."""
    found = list[str]()
    if devices.nodes == 1:
        return found
    o, pool = settings.optimiser, settings.pool
    host = urlsplit(o.vllm_server).hostname or ""
    if o.sampler == "vllm-server" and (host == "localhost" or host.startswith("127.")):
        found.append(
            f"optimiser.vllm_server = {o.vllm_server} is a loopback address, but "
            f"{devices.nodes} nodes use it; set it to the vLLM node's address"
        )
    if pool.journal is True and pool.source.partition(":")[0] not in {REHEARSAL, WORLD2}:
        found.append(
            f"pool.journal = true keeps calls in a file, which {devices.nodes} nodes cannot share: "
            "set it to postgresql://…"
        )
    return found
