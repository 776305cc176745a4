"""A tiny Qwen2 as a client: no server, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

import anyio
from anyio import to_thread

from batuta.core import Delta, Listener, Reply, Request, Sampling, Usage
from batuta.core.conductor import SILENT
from batuta.embedded.bpe import Tokenizer
from batuta.embedded.chat import chat, check_template
from batuta.embedded.folder import Tensors, read_json
from batuta.embedded.generation import Generation
from batuta.embedded.names import Names, Spelling
from batuta.embedded.qwen2 import Qwen2, Shape
from batuta.errors import BadRequest, ConfigError, ContextTooLong

DEFAULTS = Sampling(temperature=0.0, max_tokens=256)
"""Where the request leaves the choice: greedy, and not for ever."""
_SLICE = 0.02
"""Seconds of computing after which another call gets its turn and a cancelled one ends."""
_FRAGMENT = 0.002
"""The same where the reply is streamed: a few tokens."""


@final
class Embedded:
    """A model of a Hugging Face folder, computed in this process, free of charge.

    One worker thread computes, a slice of each call in turn: on the event loop itself, even in
    slices of 2 ms, it held up everything else many times longer (`bench/embedded.py`).
    """

    def __init__(self, name: str, model: Qwen2, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        """Takes what `open` has read.

        Args:
            name: what replies call the model.
            model: the weights.
            tokenizer: of the same vocabulary.
            ends: the tokens that end a reply.
        """
        self._name = name
        self._model = model
        self._tokenizer = tokenizer
        self._ends = ends
        self._spelling = Spelling(tokenizer)
        self._turn = anyio.CapacityLimiter(1)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The model saved in `folder`.

        Raises:
            ConfigError: the folder, a file, a tensor or a setting is missing or not as needed.
        """
        try:
            return cls._opened(folder)
        except ConfigError as error:
            raise ConfigError(f"the model in {folder} cannot be used: {error}") from None

    @classmethod
    def _opened(cls, folder: Path) -> Self:
        if not folder.is_dir():
            raise ConfigError("there is no such folder")
        config = read_json(folder / "config.json")
        shape = Shape.read(config)
        check_template(folder)
        tokenizer = Tokenizer(read_json(folder / "tokenizer.json"))
        if len(tokenizer) > shape.vocabulary:
            raise ConfigError(
                f"tokenizer.json has {len(tokenizer)} tokens, config.json {shape.vocabulary}"
            )
        model = Qwen2(shape, Tensors.read(folder / "model.safetensors"))
        return cls(folder.name, model, tokenizer, _ends(folder, config))

    def __repr__(self) -> str:
        return f"Embedded({self._name!r})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The model's reply; its text starts with the request's prefill.

        Raises:
            BadRequest: the request asks for something that the model cannot do.
            ContextTooLong: the prompt leaves no position for a reply.
        """
        generation = await to_thread.run_sync(self._begin, request, limiter=self._turn)
        seconds = _FRAGMENT if listener.streaming else _SLICE
        said = [request.prefill]
        await _tell(listener, request.prefill)
        while generation.finish is None:
            text = await to_thread.run_sync(generation.advance, seconds, limiter=self._turn)
            said.append(text)
            await _tell(listener, text)
        usage = Usage(calls=1, input=generation.read, output=generation.written)
        return Reply("".join(said), usage=usage, finish=generation.finish, model=self._name)

    def _begin(self, request: Request) -> Generation:
        sampling = request.sampling.over(DEFAULTS)
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise BadRequest("max_tokens is at least 1")
        tokens = self._tokens(chat(request))
        names = Names(request.names, self._spelling) if request.names else None
        if names:
            names.take(request.prefill.encode())
        return Generation(self._model, self._tokenizer, self._ends, tokens, sampling, names)

    def _tokens(self, text: str) -> list[int]:
        """The prompt's tokens; a text that is far too long is not even looked at."""
        positions = self._model.shape.positions
        if self._tokenizer.least(text) < positions:
            tokens = self._tokenizer.encode(text)
            if len(tokens) < positions:
                return tokens
        raise ContextTooLong(
            f"the prompt leaves no room for a reply in the {positions} positions of "
            f"{self._name}: shorten it"
        )


async def _tell(listener: Listener, text: str) -> None:
    if text and listener.streaming:
        await listener.spoke(Delta(text=text))


def _ends(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a reply: one or a list, in generation_config.json or in config.json."""
    path = folder / "generation_config.json"
    told: Any = read_json(path).get("eos_token_id") if path.exists() else None
    told = config.get("eos_token_id") if told is None else told
    ends: list[Any] = told if isinstance(told, list) else [told]  # pyright: ignore[reportUnknownVariableType] - JSON
    if not ends or not all(isinstance(end, int) for end in ends):
        raise ConfigError("neither generation_config.json nor config.json has an eos_token_id")
    return frozenset(ends)
