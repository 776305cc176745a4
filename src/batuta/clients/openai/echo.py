"""How likely a model finds a text: `POST {base_url}/completions` with `echo` and `logprobs`.

vLLM, SGLang and llama-cpp-python answer with the log probability of every token of the prompt, as
lm-evaluation-harness asks of them. llama.cpp's own server takes the fields and ignores `echo`;
OpenAI has no such models left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from batuta.clients.call import ErrorReply, ProviderReply, StreamAccumulator
from batuta.clients.decoding import as_array, as_object, as_string, need_string
from batuta.clients.openai.stream import OpenAIStreamAccumulator, parse_usage
from batuta.core import Reply, Request, TokenLogprob
from batuta.errors import UnsupportedFieldError


@final
class EchoAdapter:
    """The dialect as pure functions. A reply's tokens are those of the prompt and one more."""

    supports_prefill = False

    def __init__(self, model: str) -> None:
        self._model = model

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send; a token is written because some servers refuse to write none."""
        return {
            "model": self._model,
            "prompt": prompt_text(request),
            "echo": True,
            "logprobs": 1,
            "max_tokens": 1,
            "temperature": 0,
        }

    def parse_reply(self, data: Any) -> ProviderReply:
        """A whole reply read; without tokens where the server does not echo.

        Raises:
            ErrorReply: it is an error object.
        """
        if data.get("error"):
            raise ErrorReply(data)
        told = as_object(as_object(data["choices"][0]).get("logprobs"))
        rows = zip(as_array(told.get("tokens")), as_array(told.get("token_logprobs")), strict=True)
        # the first token of a prompt has nothing before it, and so no probability
        tokens = tuple(
            TokenLogprob(token=need_string(token), logprob=0.0 if value is None else float(value))
            for token, value in rows
        )
        text = as_string(as_object(data["choices"][0]).get("text"))
        reply = Reply(text=text, logprobs=tokens, model=as_string(data.get("model")))
        return ProviderReply(reply=reply, usage=parse_usage(data.get("usage")))

    def new_accumulator(self) -> StreamAccumulator:
        """Never filled: an echo is not streamed."""
        return OpenAIStreamAccumulator()


def prompt_text(request: Request) -> str:
    """What the server is to read: the messages' texts as they stand, and the continuation."""
    return "\n\n".join(message.text for message in request.messages) + request.continuation


def keep_continuation(reply: Reply, request: Request) -> Reply:
    """The same with the tokens of the continuation alone, and without the text.

    A token that lies half in the prompt counts as one of the continuation.

    Raises:
        UnsupportedFieldError: the server did not echo the prompt with its log probabilities, or in
            pieces that do not spell it.
    """
    whole = prompt_text(request)
    tokens = reply.logprobs[:-1]  # the last one was written after the prompt
    kept = _last_tokens(tokens, request.continuation)
    if kept is None:
        kept = _tokens_after(tokens, whole.removesuffix(request.continuation))
    if not kept or not reply.text.startswith(whole):
        raise UnsupportedFieldError(
            f"{reply.model or 'the server'} does not echo a prompt with its log probabilities",
            usage=reply.usage,
            cost=reply.cost,
        )
    return replace(reply, text="", logprobs=tuple(kept))


def _last_tokens(tokens: Sequence[TokenLogprob], text: str) -> Sequence[TokenLogprob] | None:
    """The fewest last tokens that end with the text; None: they do not spell it.

    A character of several tokens is told as marks that stand for none.
    """
    spelled = ""
    for place in reversed(range(len(tokens))):
        spelled = tokens[place].token + spelled
        if len(spelled) >= len(text):
            return tokens[place:] if spelled.endswith(text) else None
    return None


def _tokens_after(tokens: Sequence[TokenLogprob], text: str) -> Sequence[TokenLogprob] | None:
    """The tokens after those that spell the text; a mark of the beginning may stand before it."""
    for begin in (0, 1):
        spelled = ""
        for place in range(begin, len(tokens)):
            if spelled == text:
                return tokens[place:]
            spelled += tokens[place].token
    return None
