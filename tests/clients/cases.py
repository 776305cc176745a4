"""What the client tests share: the HTTP dialects side by side, and a listener that remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from batuta.clients import AnthropicClient, GeminiClient, HttpTransport, OpenAIChatClient, Secret
from batuta.clients.openai.client import OPENAI_DIALECT, OPENROUTER_DIALECT, PREFILL_DIALECT
from batuta.clients.openai.responses import OpenAIResponsesClient
from batuta.core import Client, Delta, Failure, NullListener, Price, Worker, WorkerId
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.openai_responses import FakeOpenAIResponses
from fakes.server import KEY, FakeServer

PRICE = Price(input=Decimal(1), output=Decimal(10))


def worker(model: str = "gpt-5-mini", **more: Any) -> Worker:
    return Worker(id=WorkerId("w"), model=model, **{"price": PRICE, **more})


@dataclass(frozen=True)
class Case:
    """One dialect: how its fake is made and its client."""

    name: str
    fake: Callable[..., FakeServer]
    client: Callable[[FakeServer, HttpTransport], Client]


def _compatible(*args: Any, **options: Any) -> FakeServer:
    return FakeOpenAI(*args, strict_openai=False, **options)


CASES = (
    Case(
        "openai",
        FakeOpenAI,
        lambda s, h: OpenAIChatClient(worker(), h, base_url=s.url, key=Secret(KEY)),
    ),
    Case(
        "responses",
        FakeOpenAIResponses,
        lambda s, h: OpenAIResponsesClient(
            worker("gpt-6-luna"), h, base_url=s.url, key=Secret(KEY), dialect=OPENAI_DIALECT
        ),
    ),
    Case(
        "openrouter",
        _compatible,
        lambda s, h: OpenAIChatClient(
            worker("a/b"), h, base_url=s.url, key=Secret(KEY), dialect=OPENROUTER_DIALECT
        ),
    ),
    Case(
        "vllm",
        _compatible,
        lambda s, h: OpenAIChatClient(
            worker("llama"), h, base_url=s.url, key=Secret(KEY), dialect=PREFILL_DIALECT
        ),
    ),
    Case(
        "anthropic",
        FakeAnthropic,
        lambda s, h: AnthropicClient(
            worker("claude-sonnet-4-5"), h, base_url=s.url, key=Secret(KEY)
        ),
    ),
    Case(
        "gemini",
        FakeGemini,
        lambda s, h: GeminiClient(worker("gemini-2.5-flash"), h, base_url=s.url, key=Secret(KEY)),
    ),
)


@dataclass
class RecordingListener(NullListener):
    """A listener that remembers."""

    streaming: bool = True
    deltas: list[Delta] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    stop: Exception | None = None
    """Raised when a failure is told."""

    async def on_delta(self, delta: Delta) -> None:
        self.deltas.append(delta)

    async def on_failure(self, failure: Failure) -> None:
        self.failures.append(failure)
        if self.stop is not None:
            raise self.stop

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)

    def calls(self) -> list[tuple[str, str, str]]:
        """The tool calls that the deltas add up to: id, name, arguments."""
        rows: dict[int, list[str]] = {}
        for delta in self.deltas:
            if delta.tool_index is not None:
                row = rows.setdefault(delta.tool_index, ["", "", ""])
                row[0] += delta.tool_id
                row[1] += delta.tool_name
                row[2] += delta.tool_arguments
        return [(row[0], row[1], row[2]) for _, row in sorted(rows.items())]
