"""Google's Gemini API: generateContent and its stream.

Deviations a caller should know: prefill is not sent; a model named `gemini-2.5…` thinks by a
budget, `gemini-3…` by a level, and others get no thinking setting.
"""

from __future__ import annotations

from typing import Any, final
from urllib.parse import quote

from batuta.clients.exchange import Fold, Line, Told, exchange, lowest
from batuta.clients.gemini_fold import GeminiFold, told_of
from batuta.clients.gemini_turns import system_of, turns_of
from batuta.clients.secret import NO_KEY, Secret
from batuta.clients.session import Http, Target
from batuta.core import Listener, Reply, Request, Tool, Worker
from batuta.core.conductor import SILENT

_BUDGETS = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_LOW = {"none", "minimal", "low"}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


@final
class Gemini:
    """A worker behind `POST {base_url}/models/{model}:generateContent`."""

    def __init__(
        self,
        worker: Worker,
        http: Http,
        *,
        base_url: str = "https://generativelanguage.googleapis.com/v1beta",
        key: Secret = NO_KEY,
    ) -> None:
        """Opens nothing.

        Raises:
            ConfigError: `base_url` is no http(s) URL.
        """
        headers = {"x-goog-api-key": key.reveal()} if key else {}
        model = worker.model.removeprefix("models/")
        url = f"{base_url.rstrip('/')}/models/{quote(model, safe='')}"
        self.worker = worker
        self._line = Line(
            worker,
            GeminiWire(model),
            http,
            Target(f"{url}:generateContent", headers, key),
            Target(f"{url}:streamGenerateContent?alt=sse", headers, key),
        )

    def __repr__(self) -> str:
        return f"Gemini({self.worker.id!r} at {self._line.plain.host})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The model's reply; streamed if the listener wants fragments.

        Raises:
            ClientError: the call gave no usable reply.
        """
        return await exchange(self._line, request, listener)


@final
class GeminiWire:
    """The dialect as pure functions."""

    continues = False

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON to send."""
        signed = self._model.startswith("gemini-3")
        body: dict[str, Any] = {"contents": turns_of(request.messages, signed=signed)}
        system = system_of(request.messages)
        if system:
            body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
        config = self._config(request)
        if config:
            body["generationConfig"] = config
        if request.tools:
            _offer(body, request)
        return body

    def told(self, data: Any) -> Told:
        """A whole reply read."""
        return told_of(data)

    def fold(self) -> Fold:
        """An empty reply."""
        return GeminiFold()

    def _config(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        config: dict[str, Any] = {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "maxOutputTokens": lowest(sampling.max_tokens, request.max_output),
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "thinkingConfig": _within(self._thinking(sampling.effort), request.max_output),
        }
        wanted = request.response_format
        if wanted is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = dict(wanted.schema) or None
        return {name: value for name, value in config.items() if value is not None}

    def _thinking(self, effort: str | None) -> dict[str, Any] | None:
        if effort is None:
            return None
        shown = effort != "none"
        if self._model.startswith("gemini-3"):
            return {
                "thinkingLevel": "low" if effort in _LOW else "high",
                "includeThoughts": shown,
            }
        if self._model.startswith("gemini-2.5") and effort in _BUDGETS:
            budget = _BUDGETS[effort]
            if "pro" in self._model:
                budget = max(budget, 128)  # it cannot but think
            return {"thinkingBudget": budget, "includeThoughts": shown}
        return None


def _within(thinking: dict[str, Any] | None, most: int | None) -> dict[str, Any] | None:
    """A model under a cap thinks half of it at most: its thoughts count to its output."""
    if thinking is not None and most is not None and "thinkingBudget" in thinking:
        return {**thinking, "thinkingBudget": min(thinking["thinkingBudget"], most // 2)}
    return thinking


def _offer(body: dict[str, Any], request: Request) -> None:
    body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in request.tools]}]
    choice = request.tool_choice
    if choice is None:
        return
    calling: dict[str, Any] = {"mode": _MODES.get(choice, "ANY")}
    if choice not in _MODES:
        calling["allowedFunctionNames"] = [choice]
    body["toolConfig"] = {"functionCallingConfig": calling}


def _tool(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name, "description": tool.description or tool.name}
    if tool.parameters:
        described["parametersJsonSchema"] = dict(tool.parameters)
    return described
