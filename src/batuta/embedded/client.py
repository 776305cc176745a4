"""A client for a tiny Qwen2 in this process, with its chat template; it needs no torch."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Self, final

import anyio
import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from batuta.core import (
    CallListener,
    Delta,
    Finish,
    Message,
    Reply,
    Request,
    Role,
    Sampling,
    Text,
    Usage,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.embedded.adapters import AdaptedTensors, is_adapter, read_base
from batuta.embedded.blas import single_blas_thread
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.constrained_decoding import NameConstraint, NameTokens
from batuta.embedded.model_files import Floats, SafetensorsFile, read_bytes, read_json
from batuta.embedded.qwen2 import KVCache, Qwen2, Qwen2Config
from batuta.errors import BadRequestError, ConfigError, ContextLengthError

_GREEDY_TEMPERATURE = 1e-5
"""Temperature below which sampling is greedy."""


def create_generator(seed: int | None) -> np.random.Generator:
    """Return a PCG64 generator with this seed, the same on every machine; None: a random seed."""
    return np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))


def sample_token(logits: Floats, sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the likeliest token if the temperature is None or almost 0, else a sampled token."""
    temperature = sampling.temperature or 0.0
    if temperature < _GREEDY_TEMPERATURE:
        return int(logits.argmax())
    weights = softmax(logits, temperature)
    if sampling.top_p is not None:
        weights = keep_top_p(weights, sampling.top_p)
    cumulative = np.cumsum(weights)
    drawn = rng.random() * float(cumulative[-1])
    return int(np.searchsorted(cumulative, drawn, side="right"))


def softmax(logits: Floats, temperature: float) -> NDArray[np.float64]:
    """Return the probabilities of the tokens, (v,), as float64."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return weights / weights.sum()


def keep_top_p(weights: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """Return `weights`, with 0 for all but the fewest likeliest tokens that reach `top_p`.

    Nucleus sampling, Holtzman et al. 2019 (arXiv:1904.09751).
    """
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = np.zeros_like(weights)
    likeliest = order[: max(int(np.searchsorted(before, top_p)), 1)]
    kept[likeliest] = weights[likeliest]
    return kept


@final
class IncrementalDetokenizer:
    """Turns bytes into text as they arrive.

    Law: the returned texts, joined, are the whole text up to the first stop string.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        """End before the first of the `stop` strings; empty ones are ignored."""
        self._stop = tuple(filter(None, stop))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held_back = ""
        self.has_stopped = False
        """True once a stop string was found."""

    def append_bytes(self, data: bytes, *, last: bool = False) -> str:
        """Return the text that is final now.

        An end that may begin a stop string is held back, unless `last` says that no bytes follow.
        """
        text = self._held_back + self._decoder.decode(data, last)
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.has_stopped = True
            self._held_back = ""
            return text[: min(found)]
        complete = len(text) - (0 if last else self._held_back_length(text))
        self._held_back = text[complete:]
        return text[:complete]

    def _held_back_length(self, text: str) -> int:
        """Return how many characters at the end of `text` may begin a stop string."""
        starts = (
            size
            for stop in self._stop
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        )
        return max(starts, default=0)


_PROMPT_BLOCK = 64
"""Prompt tokens in one step: enough to be fast, few enough to stop soon."""


@final
class Generation:
    """Computes a prompt and its reply in slices; a slice's length does not change the reply."""

    def __init__(
        self,
        model: Qwen2,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        names: NameConstraint | None = None,
    ) -> None:
        """Compute nothing yet.

        Args:
            model: the weights.
            tokenizer: decodes the reply.
            ends: the tokens that end a reply.
            prompt: at least one token, fewer than the model has positions.
            sampling: without `max_tokens`, the model's positions are the limit.
            names: constrains the workers that the reply may name; None: no constraint.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._ends = ends
        self._unread = list(prompt)
        self._sampling = sampling
        self._names = names
        self._rng = create_generator(sampling.seed)
        self._detokenizer = IncrementalDetokenizer(sampling.stop)
        room = model.shape.positions - len(prompt)
        self._max_output = min(sampling.max_tokens or room, room)
        self._cache = KVCache(model.shape, len(prompt) + self._max_output)
        self.prompt_tokens = len(prompt)
        """Tokens of the prompt."""
        self.output_tokens = 0
        """Tokens of the reply so far, including the one that ends it."""
        self.finish: Finish | None = None
        """None until the reply is finished."""

    def advance(self, seconds: float) -> str:
        """Compute for about `seconds`, at least one step, and return the reply's new text."""
        until = perf_counter() + seconds
        pieces: list[str] = []
        with single_blas_thread():
            while self.finish is None:
                pieces.append(self._step())
                if perf_counter() >= until:
                    break
        return "".join(pieces)

    def _step(self) -> str:
        """Compute a block of the prompt, or the next token; return the reply's new text."""
        block, self._unread = self._unread[:_PROMPT_BLOCK], self._unread[_PROMPT_BLOCK:]
        logits = self._model.logits(block, self._cache)
        if self._unread:
            return ""
        if self._names is not None:
            logits = self._names.mask_logits(logits)
        return self._append_token(sample_token(logits, self._sampling, self._rng))

    def _append_token(self, token: int) -> str:
        self._unread = [token]
        self.output_tokens += 1
        ended = token in self._ends
        last = ended or self.output_tokens == self._max_output
        written = self._tokenizer.token_bytes(token)
        if self._names is not None:
            self._names.append_text(written)
        text = self._detokenizer.append_bytes(written, last=last)
        if ended or self._detokenizer.has_stopped:
            self.finish = Finish.STOP
        elif last:
            self.finish = Finish.LENGTH
        return text


CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The only chat template that `format_chat_prompt` supports."""
_ROLES = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
}


def format_chat_prompt(request: Request) -> str:
    """Return the prompt of `request` up to the end of its prefill.

    Role marks inside messages are not escaped, as the template does not escape them in training.

    Raises:
        BadRequestError: the request has tools or a response format, or a message that
            `role_name` refuses.
    """
    if request.tools or request.response_format:
        raise BadRequestError(
            "the embedded model supports neither tools nor response formats: leave both out"
        )
    turns = [f"<|{role_name(m, 'the embedded model')}|>{m.text}" for m in request.messages]
    return f"{''.join(turns)}<|assistant|>{request.prefill}"


def role_name(message: Message, model: str) -> str:
    """Return the name of the message's role in a chat template.

    Raises:
        BadRequestError: the message has another role, or is not text; the error names `model`.
    """
    role = _ROLES.get(message.role)
    if role is None or not all(isinstance(part, Text) for part in message.parts):
        raise BadRequestError(f"{model} reads only texts of the roles {', '.join(_ROLES)}")
    return role


def check_template(folder: Path) -> None:
    """Check that the tokenizer's chat template is `CHAT_TEMPLATE`.

    Raises:
        ConfigError: the template is missing, cannot be read, or differs.
    """
    own = folder / "chat_template.jinja"
    if own.exists():
        name, template = own.name, read_bytes(own).decode(errors="replace")
    else:
        name = "tokenizer_config.json"
        template = read_json(folder / name).get("chat_template")
    if template is None:
        raise ConfigError(f"{name} has no chat_template")
    if template != CHAT_TEMPLATE:
        raise ConfigError(
            f"{name} has a chat template other than the supported one: {CHAT_TEMPLATE}"
        )


DEFAULT_SAMPLING = Sampling(temperature=0.0, max_tokens=256)
"""Sampling for what a request does not set: greedy, with a token limit."""
_SLICE_SECONDS = 0.02
"""Seconds of computing after which another call may continue and a cancelled call ends."""
_STREAM_SLICE_SECONDS = 0.002
"""Seconds of computing between deltas of a streamed reply: a few tokens."""


@final
class EmbeddedClient:
    """A model of a Hugging Face folder, computed in this process, free of charge.

    One thread computes a slice of each call in turn. On the event loop, slices of only 2 ms delayed
    everything else by much more than that (`bench/embedded.py`).
    """

    def __init__(self, name: str, model: Qwen2, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self._name = name
        self._model = model
        self._tokenizer = tokenizer
        self._ends = ends
        self._spelling = NameTokens(tokenizer)
        self._compute_limiter = anyio.CapacityLimiter(1)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return a client for the model in `folder`, or for its adapters with their base model.

        Raises:
            ConfigError: the folder, a file, a tensor or a setting is missing or not supported.
        """
        try:
            return cls._load_folder(folder)
        except ConfigError as error:
            raise ConfigError(f"the model in {folder} cannot be used: {error}") from None

    @classmethod
    def _load_folder(cls, folder: Path) -> Self:
        if not folder.is_dir():
            raise ConfigError("there is no such folder")
        base = _base_folder(folder) if is_adapter(folder) else folder
        config = read_json(base / "config.json")
        shape = Qwen2Config.read(config)
        tokenizer_folder = folder if (folder / "tokenizer.json").exists() else base
        check_template(tokenizer_folder)
        tokenizer = Tokenizer(read_json(tokenizer_folder / "tokenizer.json"))
        if len(tokenizer) > shape.vocabulary:
            raise ConfigError(
                f"tokenizer.json has {len(tokenizer)} tokens, more than the vocab_size of "
                f"config.json, {shape.vocabulary}"
            )
        model = _read_model(shape, folder, base)
        return cls(folder.name, model, tokenizer, _eos_tokens(base, config))

    def __repr__(self) -> str:
        return f"Embedded({self._name!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply; its text starts with the request's prefill.

        Of the sampling settings, only `temperature`, `top_p`, `max_tokens`, `stop` and `seed` are
        used. `max_output` is not, because the model costs nothing.

        Raises:
            BadRequestError: the request has tools, a response format, messages that the model
                cannot read, or `max_tokens` below 1.
            ContextLengthError: the prompt leaves no position for a reply.
        """
        generation = await to_thread.run_sync(
            self._start_generation, request, limiter=self._compute_limiter
        )
        seconds = _STREAM_SLICE_SECONDS if listener.streaming else _SLICE_SECONDS
        pieces = [request.prefill]
        await _send_delta(listener, request.prefill)
        while generation.finish is None:
            text = await to_thread.run_sync(
                generation.advance, seconds, limiter=self._compute_limiter
            )
            pieces.append(text)
            await _send_delta(listener, text)
        usage = Usage(calls=1, input=generation.prompt_tokens, output=generation.output_tokens)
        return Reply(text="".join(pieces), usage=usage, finish=generation.finish, model=self._name)

    def _start_generation(self, request: Request) -> Generation:
        sampling = request.sampling.with_defaults(DEFAULT_SAMPLING)
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise BadRequestError("max_tokens must be at least 1")
        tokens = self._encode_prompt(format_chat_prompt(request))
        names = NameConstraint(request.names, self._spelling) if request.names else None
        if names:
            names.append_text(request.prefill.encode())
        return Generation(
            self._model,
            self._tokenizer,
            ends=self._ends,
            prompt=tokens,
            sampling=sampling,
            names=names,
        )

    def _encode_prompt(self, text: str) -> list[int]:
        """Return the prompt's tokens; a text that is far too long is not tokenized.

        Raises:
            ContextLengthError: the prompt leaves no position for a reply.
        """
        positions = self._model.shape.positions
        if self._tokenizer.min_tokens(text) < positions:
            tokens = self._tokenizer.encode(text)
            if len(tokens) < positions:
                return tokens
        raise ContextLengthError(
            f"the prompt leaves no room for a reply in the {positions} positions of "
            f"{self._name}: shorten it"
        )


def _base_folder(folder: Path) -> Path:
    """Return the folder of the base model of the adapters in `folder`."""
    base = Path(read_base(folder))
    if not base.is_dir():
        raise ConfigError(
            f"its adapters' base model {base} is not a folder here: serve them with vLLM "
            f"(`vllm serve {base} --enable-lora`, docs/training.md), or write the whole model with "
            f"`batuta train merge {folder} --out FOLDER` and name that folder"
        )
    return base


def _read_model(shape: Qwen2Config, folder: Path, base: Path) -> Qwen2:
    """Read the weights in `base`, with the adapters in `folder` if that is another folder."""
    if base == folder:
        return Qwen2(shape, SafetensorsFile.read(folder / "model.safetensors"))
    tensors = AdaptedTensors.read(folder, base)
    model = Qwen2(shape, tensors)
    tensors.check_all_taken()
    return model


async def _send_delta(listener: CallListener, text: str) -> None:
    if text and listener.streaming:
        await listener.on_delta(Delta(text=text))


def _eos_tokens(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end a reply, from generation_config.json or config.json."""
    path = folder / "generation_config.json"
    eos: Any = read_json(path).get("eos_token_id") if path.exists() else None
    eos = config.get("eos_token_id") if eos is None else eos
    ends: list[Any] = eos if isinstance(eos, list) else [eos]  # pyright: ignore[reportUnknownVariableType] - JSON
    if not ends or not all(isinstance(end, int) for end in ends):
        raise ConfigError("neither generation_config.json nor config.json has an eos_token_id")
    return frozenset(ends)
