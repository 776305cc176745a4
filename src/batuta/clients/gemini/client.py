"""Google's Gemini API: generateContent and its stream.

Deviations a caller should know:
- Prefill, `parallel_tool_calls`, `strict` and prompt-caching settings are not sent.
- The effort is sent as a thinking budget to `gemini-2.5…`, and as a thinking level to `gemini-3…`
  and later models. From `gemini-4` on the effort `none` is a budget of 0. Other models get neither.

Levels were read from Google's developer guides on 2026-11-24: low and high from 3 on, medium from
3.1 on and for every Flash.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, final
from urllib.parse import quote

from batuta.clients.call import ProviderClient, min_cap
from batuta.clients.decoding import ProviderReply
from batuta.clients.error_mapping import refuse_fields
from batuta.clients.gemini.messages import gemini_contents, system_texts
from batuta.clients.gemini.stream import GeminiStreamAccumulator, parse_response
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.native_search import find_native
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.transport import HttpTransport
from batuta.core import Request, Tool, Worker
from batuta.core.worker import IMAGE
from batuta.errors import UnsupportedFieldError

_THINKING_BUDGETS = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_LEAST_LITE_BUDGET = 512
"""Minimum thinking budget of Flash-Lite, besides 0."""
_LOW_EFFORTS = {"none", "minimal", "low"}
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_TOOL_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


@final
class GeminiClient(ProviderClient):
    """A worker behind `POST {base_url}/models/{model}:generateContent`."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str = "https://generativelanguage.googleapis.com/v1beta",
        key: Secret = NO_KEY,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        headers = {"x-goog-api-key": key.reveal()} if key else {}
        model = worker.model.removeprefix("models/")
        url = f"{base_url.rstrip('/')}/models/{quote(model, safe='')}"
        whole, streamed = (
            HttpTarget(url=f"{url}:{method}", headers=headers, key=key)
            for method in ("generateContent", "streamGenerateContent?alt=sse")
        )
        adapter = GeminiAdapter(model, draws=IMAGE in worker.tags)
        super().__init__(
            "Gemini", worker, http, adapter=adapter, target=whole, stream_target=streamed
        )


@final
class GeminiAdapter:
    """Translates requests to this API and parses its replies; pure functions."""

    supports_prefill = False

    def __init__(self, model: str, *, draws: bool = False) -> None:
        """Create the adapter; with `draws`, images are requested besides text."""
        self._model = model
        self._draws = draws

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            BadRequestError: an image, log probabilities, or a search with other tools or domains
                cannot be sent.
        """
        signed = _gemini_version(self._model) >= (3, 0)
        body: dict[str, Any] = {
            "contents": gemini_contents(request.messages, needs_signature=signed, model=self._model)
        }
        system = system_texts(request.messages)
        if system:
            body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
        config = self._generation_config(request)
        if config:
            body["generationConfig"] = config
        if request.tools:
            _add_tools(body, request, self._model)
        return body

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply."""
        return parse_response(data, self._model)

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for a new reply."""
        return GeminiStreamAccumulator(self._model)

    def _generation_config(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        refuse_fields(self._model, sampling, ("logprobs",))
        most = min_cap(sampling.max_tokens, request.max_output)
        config: dict[str, Any] = {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "topK": sampling.top_k,
            "frequencyPenalty": sampling.frequency_penalty,
            "presencePenalty": sampling.presence_penalty,
            "maxOutputTokens": most,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "candidateCount": sampling.choices,
            "responseModalities": ["TEXT", "IMAGE"] if self._draws else None,
            "thinkingConfig": self._thinking_config(sampling.effort, most),
        }
        if request.response_format is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = dict(request.response_format.schema) or None
        return {name: value for name, value in config.items() if value is not None}

    def _thinking_config(self, effort: str | None, most: int | None) -> dict[str, Any] | None:
        """Return the thinking of an effort; a budget is at most half of `most` output tokens."""
        if effort is None:
            return None
        shown = effort != "none"
        version = _gemini_version(self._model)
        if effort == "none" and version >= (4, 0):
            return {"thinkingBudget": 0, "includeThoughts": False}
        if version >= (3, 0):
            return {"thinkingLevel": self._thinking_level(effort), "includeThoughts": shown}
        if version == (2, 5) and effort in _THINKING_BUDGETS:
            budget = _THINKING_BUDGETS[effort]
            if most is not None:  # thoughts count as output
                budget = min(budget, most // 2)
            if "pro" in self._model:
                budget = max(budget, 128)  # thinking cannot be turned off
            elif "lite" in self._model and budget < _LEAST_LITE_BUDGET:
                budget = 0
            return {"thinkingBudget": budget, "includeThoughts": shown}
        return None

    def _thinking_level(self, effort: str) -> str:
        if effort in _LOW_EFFORTS:
            return "low"
        has_medium = _gemini_version(self._model) >= (3, 1) or "flash" in self._model
        return "medium" if effort == "medium" and has_medium else "high"


@cache
def _gemini_version(model: str) -> tuple[int, int]:
    """Return (3, 8) for `gemini-3.8-flash`, and (0, 0) for a model with another name."""
    named = _VERSION.match(model)
    return (int(named[1]), int(named[2] or 0)) if named else (0, 0)


def _add_tools(body: dict[str, Any], request: Request, model: str) -> None:
    native = find_native(request.tools)
    if native is not None:
        if len(request.tools) > 1:
            raise UnsupportedFieldError(f"{model} cannot combine its search with other tools")
        if native.allow or native.deny:
            raise UnsupportedFieldError("Google's search does not accept domains")
        body["tools"] = [{"googleSearch": {}}]
        return
    body["tools"] = [{"functionDeclarations": [_tool_json(tool) for tool in request.tools]}]
    choice = request.tool_choice
    if choice is None:
        return
    calling: dict[str, Any] = {"mode": _TOOL_MODES.get(choice, "ANY")}
    if choice not in _TOOL_MODES:
        calling["allowedFunctionNames"] = [choice]
    body["toolConfig"] = {"functionCallingConfig": calling}


def _tool_json(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name, "description": tool.description or tool.name}
    if tool.parameters:
        described["parametersJsonSchema"] = dict(tool.parameters)
    return described
