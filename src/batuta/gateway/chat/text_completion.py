"""POST /v1/completions: the legacy completions endpoint.

The workers are chat models, so the prompt is sent as a user message and the answer is the text.
Fields that are not honoured, such as `echo`, `suffix` and `logprobs`, are refused.
"""

from __future__ import annotations

from time import time
from typing import Any, cast, final

from batuta.core import Event, Question, Reply, Run, StepDelta, user_message
from batuta.gateway.chat.endpoint import DONE_FRAME, CompletionForm, finish_reason
from batuta.gateway.chat.request import parse_sampling
from batuta.gateway.errors import APIError, invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields, encode_json
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import SSEWriter, orchestration_field, usage_of
from batuta.gateway.serving.parsed_call import ORCHESTRATION_FIELD, ParsedCall, parse_run_options

COMPLETIONS_PATH = "/v1/completions"
_EMPTY_VALUES: tuple[Any, ...] = (None, False, "", [], {})
REFUSED_FIELDS = {
    "echo": "the prompt is not repeated in the answer.",
    "suffix": "chat models do not fill in text; describe in the prompt what follows.",
    "logprobs": "log probabilities are not available on this endpoint.",
    "logit_bias": "it cannot be honoured for every worker.",
}
"""Known fields that are refused, unless their value is empty, with the reasons."""
_USED_FIELDS = {
    *("model", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop"),
    *("n", "best_of", "seed", "frequency_penalty", "presence_penalty", "top_k", "store"),
    *("max_completion_tokens", "reasoning_effort", ORCHESTRATION_FIELD),
}
_ACCEPTED_FIELDS = {"user"}
"""Fields that are validated but ignored; a response header lists them."""
_KNOWN_FIELDS = _USED_FIELDS | _ACCEPTED_FIELDS | REFUSED_FIELDS.keys()


def parse_completion(body: Fields) -> ParsedCall:
    """Return the body as a call.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    model, prompt = body.need_text("model"), _parse_prompt(body)
    for name, reason in REFUSED_FIELDS.items():
        # `logprobs: 0` still requests the log probabilities of the sampled tokens.
        value: object = body.get(name)
        if value not in _EMPTY_VALUES or (name == "logprobs" and type(value) is int):
            raise unsupported_parameter(name, reason)
    for name in ("n", "best_of"):
        if body.whole(name, 1, 128) not in {None, 1}:
            raise unsupported_parameter(name, "each request gets one answer.")
    body.text("user")
    options = body.object("stream_options")
    return ParsedCall(
        model=model,
        question=Question(messages=(user_message(prompt),), sampling=parse_sampling(body)),
        stream=bool(body.flag("stream")),
        include_usage=bool(options and options.flag("include_usage")),
        store=body.flag("store") is not False,
        options=parse_run_options(body),
        ignored=tuple(body.unused(_KNOWN_FIELDS, _ACCEPTED_FIELDS)),
    )


def _parse_prompt(body: Fields) -> str:
    """Return the prompt, given as a string or as an array of one string."""
    given = body.need("prompt")
    if isinstance(given, list):
        entries = cast("list[Any]", given)
        if any(not isinstance(entry, str) for entry in entries):
            raise unsupported_parameter(
                "prompt", "send text instead of token ids: the workers' tokenizers differ."
            )
        if len(entries) != 1:
            raise unsupported_parameter("prompt", "send one prompt in each request.")
        given = entries[0]
    if not isinstance(given, str):
        raise invalid_type("prompt", "a string", given)
    if not given:
        raise invalid_value("prompt", "it must not be empty.")
    return given


def render_text_completion(run: Run, reply: Reply, model: str, *, trace: bool) -> dict[str, Any]:
    """Return the answer of a run as a `text_completion` object."""
    body = _completion_base(str(run.id), int(run.header.started), model)
    body["choices"] = [_choice_object(reply.text, finish_reason(reply))]
    return {**body, "usage": usage_of(run), **orchestration_field(run, trace=trace)}


def _completion_base(run_id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{run_id}", "object": "text_completion", "created": created, "model": model}


def _choice_object(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


@final
class TextCompletionStreamRenderer:
    """Writes the chunks of one run: the text of the last step, then the end."""

    def __init__(self, writer: SSEWriter, prepared: PreparedCall) -> None:
        self._writer = writer
        self._call = prepared.call
        self._base = _completion_base(str(prepared.run_id), int(time()), prepared.call.model)
        self._texts: list[str] = []

    async def open(self, headers: dict[str, str]) -> None:
        """Send the headers; the first chunk follows with the first text."""
        await self._writer.open(headers)

    async def on_event(self, event: Event) -> None:
        """Send the text of the last step; this dialect has no field for progress."""
        if isinstance(event, StepDelta) and event.is_answer and (text := event.delta.text):
            self._texts.append(text)
            await self._writer.write(self._frame(_choice_object(text)))

    def matches(self, reply: Reply) -> bool:
        """Return True if the text sent so far is a prefix of the reply."""
        return reply.text.startswith("".join(self._texts))

    async def finish(self, run: Run, reply: Reply) -> None:
        """Send the rest of the text, the finish reason, the usage if requested, and `[DONE]`."""
        rest = reply.text[sum(map(len, self._texts)) :]
        frames = self._frame(_choice_object(rest)) if rest else b""
        more = orchestration_field(run, trace=self._call.options.trace)
        frames += self._frame(_choice_object("", finish_reason(reply)), **more)
        if self._call.include_usage:
            usage: dict[str, Any] = {**self._base, "choices": [], "usage": usage_of(run)}
            frames += b"data: " + encode_json(usage) + b"\n\n"
        await self._writer.close(frames + DONE_FRAME)

    async def fail(self, error: APIError) -> None:
        """Send an error after status 200, without a finish reason and without `[DONE]`."""
        await self._writer.close(b"data: " + encode_json(error.body) + b"\n\n")

    def _frame(self, choice: dict[str, Any], **more: Any) -> bytes:
        return b"data: " + encode_json({**self._base, "choices": [choice], **more}) + b"\n\n"


TEXT_FORM = CompletionForm(parse_completion, render_text_completion, TextCompletionStreamRenderer)
