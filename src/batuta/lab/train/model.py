"""Makes, loads and saves policies: a small Qwen2 made from scratch, or a pretrained model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from peft import PeftModel
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)

from batuta.embedded import CHAT_TEMPLATE
from batuta.embedded.adapters import is_adapter, read_base
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import ConductorCard, is_policy
from batuta.environment import available_memory
from batuta.errors import ConfigError
from batuta.lab.train.adapters import (
    add_adapters,
    attach_adapters,
    find_adapters,
    merge_adapters,
    remove_adapters,
)
from batuta.lab.train.checkpoint_files import report_unsaved
from batuta.lab.train.device import (
    choose_attention,
    freeze_lower_layers,
    place_model,
    without_adapters,
)
from batuta.lab.train.hub import find_reachable
from batuta.lab.train.machine import (
    FP32,
    GIB,
    count_parameters,
    new_architecture,
    read_architecture,
)
from batuta.lab.train.sampler import eval_mode, own_sampler_problem
from batuta.lab.train.settings import LoraSettings, NetworkSettings, TrainSettings
from batuta.lab.train.shared_prompt import completion_logprobs

SPLIT_PATTERN = (
    r'(?:"?\]\n)?(?:model_id|subtasks|access_list) = \[+"?'
    r"| ?\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+(?: [^\sA-Za-z\d]+)*|\s+"
)
"""Matches the parts of a text that may become one token: a list's frame, a digit, a word, a run of
symbols, or white space."""

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
"""The special tokens of a tokenizer made from scratch: padding, end, and the roles of messages."""


def make_tokenizer(texts: Iterable[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of at most `size` tokens, which can encode any text.

    It has at least 261 tokens: the 256 bytes and 5 special tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, END, *ROLES],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


LOGPROB_TOLERANCE = 1e-2
"""Maximum difference, in nats a token, between `completion_logprobs` and transformers."""
_GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names, in this and older versions of transformers, of tokenizers that tokenizer.json defines."""


def make_model(tokenizer: Any, **sizes: int) -> Qwen2ForCausalLM:
    """Return a Qwen2 with random fp32 weights, tied embeddings and the tokenizer's vocabulary.

    `sizes` are the other fields of `NetworkSettings`.
    """
    network = NetworkSettings(vocabulary=len(tokenizer), **sizes)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return Qwen2ForCausalLM(new_architecture(network, bos_token_id=None, **ends))


def make_policy(texts: Iterable[tuple[str, str]], network: NetworkSettings) -> tuple[Any, Any]:
    """Return a network with random weights, on the training device, and its tokenizer.

    The tokenizer is trained on `texts`, pairs of a prompt and a draft.
    """
    tokenizer = make_tokenizer((text for pair in texts for text in pair), network.vocabulary)
    model = make_model(tokenizer, **network.model_dump(exclude={"vocabulary"}))
    return place_model(model), tokenizer


def load_policy(start: str, revision: str | None) -> tuple[Any, Any]:
    """Load the model in fp32, with adapters merged, and the tokenizer of a folder or hub id.

    Raises:
        ConfigError: the files cannot be loaded or have no causal language model, weights are
            missing, the tokenizer belongs to another model or has no usable chat template, or the
            weights do not fit in memory.
    """
    model, tokenizer = load_to_adapt(start, revision, None)
    return (merge_adapters(model) if isinstance(model, PeftModel) else model), tokenizer


def load_to_adapt(start: str, revision: str | None, lora: LoraSettings | None) -> tuple[Any, Any]:
    """Load a policy as `load_policy` does, but keep its adapters separate from its weights.

    With `lora` the adapters can be trained further.

    Raises:
        ConfigError: as for `load_policy`, or the adapters differ from `lora`.
    """
    _check_room(start, revision)
    model, tokenizer = _read_policy(start, revision, lora)
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer in {start} has {len(tokenizer)} tokens and the model only "
            f"{model.config.vocab_size}: copy all files of the tokenizer that it was trained with"
        )
    _check_chat_template(tokenizer, start)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _read_policy(start: str, revision: str | None, lora: LoraSettings | None) -> tuple[Any, Any]:
    saved, base = None, start
    try:
        source, wanted = find_reachable(start, revision)
        saved = find_adapters(source, wanted)
        base, version = (saved.base, saved.config.revision) if saved else (start, revision)
        tokenizer = read_tokenizer(source, wanted)
        whole, version = find_reachable(base, version)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            whole, dtype=torch.float32, revision=version, output_loading_info=True
        )
        model, report = loaded
        model.name_or_path = base
        require_all_weights(report, base)
        return (attach_adapters(model, saved, lora) if saved else model), tokenizer
    except (OSError, ValueError):
        adapted = f", adapters of {base!r}" if saved else ""
        raise ConfigError(
            f"no policy can be loaded from {start!r}{adapted}; set policy.start to a folder with a "
            "model and its tokenizer, or to a hub id that can be downloaded"
        ) from None
    except DAMAGE as error:
        raise ConfigError(
            f"the policy in {start} is damaged, or its files belong to different models "
            f"({first_line(error)}); download or write it again"
        ) from None


DAMAGE = (SafetensorError, StrictDataclassError, RuntimeError, KeyError, IndexError, TypeError)
"""Errors of the libraries about files that are damaged or do not belong together."""


def first_line(error: Exception) -> str:
    """Return the first line of the error's message, at most 120 characters."""
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def require_all_weights(report: Mapping[str, Any], source: object) -> None:
    """Check that no weights are missing, as transformers would fill them with random numbers.

    `report` is the loading info of transformers.

    Raises:
        ConfigError: weights are missing.
    """
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"{source} lacks {len(missing)} of its model's weights, for example {missing[0]}; "
            "download or write it again"
        )


def _check_chat_template(tokenizer: Any, start: str) -> None:
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer in {start} has no chat template, so the model cannot be prompted; "
            "use the instruction-tuned model, or add chat_template.jinja to the folder"
        )
    asked = [{"role": "user", "content": "?"}]
    try:
        tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ConfigError(
            f"the chat template in {start} cannot be rendered ({first_line(error)}); fix "
            "chat_template.jinja in that folder"
        ) from None


def _check_room(start: str, revision: str | None) -> None:
    config = read_architecture(start, revision)
    if config is None:
        return
    needed = FP32 * count_parameters(config).total
    if needed > (free := available_memory()):
        raise ConfigError(
            f"the weights of {start} take {needed / GIB:.1f} GiB in fp32 and {free / GIB:.1f} GiB "
            "of memory are free; use a smaller model or another machine"
        )


def load_trainable(start: str, settings: TrainSettings) -> tuple[Any, Any]:
    """Load a policy and its tokenizer for a single-process stage, on the GPU if there is one.

    Only the LoRA adapters or the upper layers that the settings name are trainable; without both,
    everything is.

    Raises:
        ConfigError: the policy does not exist, is damaged, does not fit in memory, has an
            architecture that these stages do not support, or has no layer of `lora.targets`.
    """
    model, tokenizer = load_policy(start, settings.policy.revision)
    check_shared_prompts(model, start)
    choose_attention(model, settings)
    place_model(model)
    if settings.policy.lora:
        return add_adapters(model, settings.policy.lora), tokenizer
    freeze_lower_layers(model, settings.policy.upper_layers)
    return model, tokenizer


def check_own_sampler(model: Any, start: str) -> None:
    """Check that our own sampler supports the model, which was loaded from `start`.

    Raises:
        ConfigError: the sampler does not support it.
    """
    if problem := own_sampler_problem(model):
        raise ConfigError(
            f'sampler = "own" cannot be used, as {start} is {problem}; set sampler = '
            '"transformers" in [optimiser]'
        )


def check_shared_prompts(model: Any, start: str) -> None:
    """Check that the single-process stages compute the model's loss correctly.

    These stages read a prompt once for its drafts and take the output matrix's product as logits.
    Some models transform the logits further, or cache something other than keys and values.

    Raises:
        ConfigError: the loss would be wrong.
    """
    bare = without_adapters(model)
    ids = (torch.arange(20, device=bare.device) * 7919 + 3).view(2, 10) % bare.config.vocab_size
    ids[1, :6] = ids[0, :6]
    with torch.inference_mode(), eval_mode(bare):
        theirs = torch.log_softmax(bare(ids, use_cache=False).logits.float(), -1)[:, 5:-1]
        expected = theirs.gather(-1, ids[:, 6:, None]).squeeze(-1)
        try:
            found, _ = completion_logprobs(bare, ids, torch.ones_like(ids), 4)
            same = bool((found - expected).abs().max() < LOGPROB_TOLERANCE)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            same = False
    if not same:
        raise ConfigError(
            f"{start} is a {type(bare).__name__}, which the stages before reinforcement "
            "learning do not support; train it with `batuta train conductor` and sampler = "
            '"transformers" alone, or use another model'
        )


def read_tokenizer(start: str, revision: str | None = None) -> Any:
    """Load the tokenizer of a folder or hub id as it was saved.

    Adapters without a tokenizer have the tokenizer of their base model. A tokenizer made from
    scratch is not loaded by `AutoTokenizer`, which splits text as Qwen2 does for every folder of a
    Qwen2 model, whatever its tokenizer.json says.

    Raises:
        ConfigError: tokenizer_config.json is not a JSON object, or the adapters name no base model
            or one that is itself an adapter.
        OSError, ValueError: there is no tokenizer.
    """
    kind: Any = PreTrainedTokenizerFast if _is_generic_tokenizer(Path(start)) else AutoTokenizer
    try:
        return kind.from_pretrained(start, padding_side="left", revision=revision)
    except (OSError, ValueError):
        if (saved := find_adapters(start, revision)) is None:
            raise
    return read_tokenizer(saved.base, saved.config.revision)


def _is_generic_tokenizer(folder: Path) -> bool:
    """Return whether the folder's tokenizer is defined by its tokenizer.json alone."""
    path = folder / "tokenizer_config.json"
    return path.is_file() and read_json(path).get("tokenizer_class") in _GENERIC_TOKENIZERS


STAGES = ("warmup", "distilled", "rejection", "conductor")
"""The stages of a training, in order; each but the last writes a folder of its name."""


def find_policy_start(settings: TrainSettings, stage: str = "conductor") -> str | None:
    """Return the folder or hub id that a stage starts from.

    Args:
        settings: the training; its output folder may have results of earlier stages.
        stage: one of `STAGES`.

    Returns:
        The result of the latest earlier stage that has run, else the model that the settings name;
        None if there is neither. Rejection sampling counts only if it is configured.
    """
    for name in reversed(STAGES[: STAGES.index(stage)]):
        if name == "rejection" and not settings.rejection.rounds:
            continue
        if (settings.output / name / "config.json").is_file():
            return str(settings.output / name)
    return settings.policy.start or None


def require_policy_start(settings: TrainSettings, stage: str = "conductor") -> str:
    """Return the result of `find_policy_start`.

    Raises:
        ConfigError: there is nothing to start from.
    """
    start = find_policy_start(settings, stage)
    if start is None:
        raise ConfigError(
            "there is no policy to start from: set policy.start, or make "
            f"{settings.output / 'warmup'} with `batuta train warmup` and the same --config"
        )
    return start


def policy_card(settings: TrainSettings) -> ConductorCard:
    """Return the card that says how the policy is prompted when it serves."""
    return ConductorCard(
        name=settings.name,
        rendering=settings.prompt.rendering(),
        max_tokens=settings.optimiser.completion,
        rounds=settings.recursion.rounds,
    )


def save_stage(model: Any, tokenizer: Any, settings: TrainSettings, stage: str) -> Path:
    """Write the policy of a stage before reinforcement learning, and return its folder.

    Raises:
        StoreError: the policy cannot be written.
    """
    folder = settings.output / stage
    if isinstance(model, PeftModel):  # the next stage adds new adapters
        model = merge_adapters(model)
    save_model(model, tokenizer, folder)
    card = replace(policy_card(settings), name=f"{settings.name}-{stage}", temperature=1.0)
    card.write(folder)
    return folder


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a whole model and its tokenizer in place of whatever policy the folder has.

    Raises:
        StoreError: the folder cannot be written.
    """
    with report_unsaved(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        remove_adapters(folder)


def merge_policy(adapters: Path, out: Path) -> Path:
    """Merge a policy's adapters into its model and write it to `out` in fp32, with any card.

    Raises:
        ConfigError: the folder has no adapters, `out` is that folder or the one of their model, or
            the adapters or their model cannot be loaded.
        StoreError: the policy cannot be written.
    """
    if not is_adapter(adapters):
        raise ConfigError(
            f"{adapters} has no PEFT adapters: name the folder of a policy with policy.lora"
        )
    if out.resolve() in {adapters.resolve(), Path(read_base(adapters)).resolve()}:
        raise ConfigError(
            "--out is the folder of the adapters or of their model: choose another folder"
        )
    model, tokenizer = load_policy(str(adapters), None)
    save_model(model, tokenizer, out)
    if is_policy(adapters):
        ConductorCard.read(adapters).write(out)
    return out
