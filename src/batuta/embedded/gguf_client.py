"""A client for a model in a GGUF file, run by llama.cpp in this process (extra `local`).

The client is for Llama and Qwen2 conductors that `batuta train export` wrote; the numpy model in
this package is for small models only.

If the request names workers, a draft is decoded with a grammar (guided decoding, Willard and Louf
2023, arXiv:2307.09702): a line of thought may precede the lists, only these workers occur, and a
step reads only earlier steps.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast, final

import anyio
from anyio import to_thread

from batuta.core import (
    MAX_STEPS,
    CallListener,
    Delta,
    Finish,
    Reply,
    Request,
    Usage,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.distribution import install_hint
from batuta.embedded.client import DEFAULT_SAMPLING, role_name
from batuta.errors import (
    BadRequestError,
    ClientError,
    ConfigError,
    ContextLengthError,
    InvalidReplyError,
)

_SHARED = r"""
thought ::= [^\n"=]{1,200} "\n"
text ::= "\"" sign{0,300} "\""
sign ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
"""
"""Rules of every grammar. A subtask is any JSON string of at most 300 characters, so that even an
untrained policy ends it before its token limit; an empty one stands for the question itself."""


def draft_grammar(names: Sequence[str]) -> str:
    """Return the GBNF grammar of drafts with 1 to `MAX_STEPS` steps and workers of these names."""
    lengths = range(1, MAX_STEPS + 1)
    rules = [f"root ::= thought? ({' | '.join(f'lists{n}' for n in lengths)})", _SHARED.strip()]
    rules.append(
        f"name ::= {' | '.join(_quote_terminal(json.dumps(n, ensure_ascii=False)) for n in names)}"
    )
    rules += [f"read{step} ::= {_list_readings(step)}" for step in range(MAX_STEPS)]
    for n in lengths:
        texts, called = (_join_rules([rule] * n) for rule in ("text", "name"))
        read = _join_rules([f"read{step}" for step in range(n)])
        rules.append(
            f'lists{n} ::= "subtasks = [" {texts} "]\\nmodel_id = [" {called} '
            f'"]\\naccess_list = [" {read} "]"'
        )
    return "\n".join(rules) + "\n"


def _list_readings(step: int) -> str:
    """Return the alternatives for a step's access list: every subset of the earlier steps."""
    sets = [
        [str(earlier) for earlier in range(step) if mask >> earlier & 1] for mask in range(2**step)
    ]
    return " | ".join(_quote_terminal(f"[{', '.join(steps)}]") for steps in sets)


def _join_rules(rules: Sequence[str]) -> str:
    return ' ", " '.join(rules)


def _quote_terminal(text: str) -> str:
    """Return the text as a terminal of the grammar."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


POSITIONS = 4096
"""Context length: tokens of prompt and reply together."""
_MAGIC = b"GGUF"
_TOO_LONG = "exceed_context_size_error"
"""llama.cpp's type of the error for a prompt that does not fit."""


@final
class GgufClient:
    """A GGUF file's model, run in this process on one thread, one call at a time."""

    def __init__(self, name: str, server: Any, *, holds_form: bool = True) -> None:
        """Create the client of a loaded model.

        Args:
            name: the model's name in replies.
            server: llama.cpp's server, with the model loaded.
            holds_form: True constrains drafts by the grammar if the request names workers; False
                leaves all drafts free, as in training.
        """
        self._name = name
        self._server = server
        self._holds_form = holds_form
        self._limiter = anyio.CapacityLimiter(1)

    @classmethod
    def open(cls, path: Path, *, holds_form: bool = True) -> Self:
        """Load the model in a GGUF file.

        Raises:
            ConfigError: llama.cpp is not installed, or the file cannot be used.
        """
        try:
            library = importlib.import_module("xllamacpp")
        except ImportError:
            raise ConfigError(
                f"{path} is served by llama.cpp; install it: {install_hint('local')}"
            ) from None
        try:
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    raise ConfigError(f"{path} is not a GGUF file")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        try:
            server = library.Server(_set_parameters(library.CommonParams(), path))
        except RuntimeError as error:
            raise ConfigError(
                f"llama.cpp cannot load {path} ({error}); fetch or export it again"
            ) from None
        return cls(path.stem, server, holds_form=holds_form)

    def __repr__(self) -> str:
        return f"Gguf({self._name!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply; a cancelled call stops at the next token.

        Of the sampling only temperature, `max_tokens` and seed count; without a seed it is 0.

        Raises:
            BadRequestError: the request has tools, a response format, a prefill, or messages that
                the model cannot read.
            ContextLengthError: the prompt leaves no position for a reply.
            InvalidReplyError: llama.cpp reported another error.
        """
        body = self._body(request)
        stopped = threading.Event()
        try:
            result = await to_thread.run_sync(
                self._compute, body, stopped, limiter=self._limiter, abandon_on_cancel=True
            )
        finally:
            stopped.set()
        if listener.streaming and result.text:
            await listener.on_delta(Delta(text=result.text))
        return result

    def _body(self, request: Request) -> dict[str, Any]:
        if request.tools or request.response_format or request.prefill:
            raise BadRequestError(
                "a conductor's GGUF file supports neither tools, response formats nor a prefill: "
                "leave them out"
            )
        sampling = request.sampling.with_defaults(DEFAULT_SAMPLING)
        body: dict[str, Any] = {
            "messages": [
                {"role": role_name(message, "a conductor's GGUF file"), "content": message.text}
                for message in request.messages
            ],
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed or 0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.names and self._holds_form:
            body["grammar"] = draft_grammar(request.names)
        return body

    def _compute(self, body: dict[str, Any], stopped: threading.Event) -> Reply:
        parts: list[str] = []
        ended: dict[str, Any] = {}
        failed: list[Any] = []

        def take_chunk(chunk: Any) -> bool:
            """Collect a chunk of the reply; return True to stop."""
            parsed: dict[str, Any] = chunk if isinstance(chunk, dict) else {}  # pyright: ignore[reportUnknownVariableType] - of JSON
            if "choices" not in parsed:
                failed.append(parsed.get("error") or chunk)
                return True
            for choice in parsed["choices"]:
                parts.append(choice["delta"].get("content") or "")
                if choice["finish_reason"]:
                    ended["finish"] = choice["finish_reason"]
            ended["usage"] = parsed.get("usage") or ended.get("usage")
            return stopped.is_set()

        try:
            self._server.handle_chat_completions(body, take_chunk)
        except (RuntimeError, ValueError) as error:
            raise InvalidReplyError(f"llama.cpp failed: {error}") from None
        if failed:
            raise self._error_of(failed[0])
        usage: dict[str, int] = ended.get("usage") or {}
        return Reply(
            text="".join(parts),
            usage=Usage(
                calls=1,
                input=usage.get("prompt_tokens", 0),
                output=usage.get("completion_tokens", 0),
            ),
            finish=Finish.LENGTH if ended.get("finish") == "length" else Finish.STOP,
            model=self._name,
        )

    def _error_of(self, stated: Any) -> ClientError:
        """Return the error for what llama.cpp stated instead of a chunk of the reply."""
        error = cast("dict[str, Any]", stated) if isinstance(stated, dict) else {}
        if error.get("type") == _TOO_LONG:
            return ContextLengthError(
                f"the prompt leaves no room for a reply in the {POSITIONS} positions of "
                f"{self._name}: shorten it"
            )
        return InvalidReplyError(f"llama.cpp failed: {str(error.get('message', stated))[:200]}")


def _set_parameters(params: Any, path: Path) -> Any:
    """Set parameters for one slot on one thread, as two threads on two busy cores are slower."""
    params.model.path = str(path)
    params.n_ctx, params.n_parallel = POSITIONS, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers, params.warmup, params.verbosity = 0, False, 0
    return params
