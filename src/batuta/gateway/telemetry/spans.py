"""A run as a tree of spans, named by OpenTelemetry's conventions for generative AI.

All names are in this module, because the conventions still change; our own begin with `batuta.`.
Spans contain workers, durations and token counts, never content. They are made when the run has
ended, from the times in the `Run`.

The extra `[otel]` sends the spans over OTLP, if one of `ENDPOINT_VARIABLES` is set.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, final

from anyio import CancelScope
from anyio.to_thread import run_sync

from batuta.core import Cost, Failure, Reply, Round, Run, StepRun, TimeSpan, Usage
from batuta.core.worker import IMAGE
from batuta.distribution import install_hint, package_version
from batuta.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

Value = str | int | float | bool | list[int]

INVOKE_WORKFLOW = "invoke_workflow"
INVOKE_AGENT = "invoke_agent"
PLAN = "plan"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

OPERATION = "gen_ai.operation.name"
WORKFLOW_NAME = "gen_ai.workflow.name"
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
RUN_ID = "batuta.run.id"
TENANT = "batuta.tenant"
OUTCOME = "batuta.outcome"
ROUND = "batuta.round"
STEP = "batuta.step.index"
ACCESS = "batuta.step.access"
PLANNED = "batuta.step.planned_worker"
ATTEMPTS = "batuta.step.attempts"
DRAFTS = "batuta.plan.malformed_drafts"
COST = "batuta.cost.usd"
UNPRICED = "batuta.cost.unpriced_calls"

_PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class ParentSpan:
    """The caller's span, from the header `traceparent`."""

    trace: int
    span: int
    flags: int


_CURRENT: ContextVar[ParentSpan | None] = ContextVar("batuta_parent", default=None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTree:
    """A span and its children."""

    name: str
    span: TimeSpan
    """The start and the end, in seconds since the run began."""
    attributes: dict[str, Value]
    error: str | None = None
    """The error code; None if the span succeeded."""
    children: tuple[SpanTree, ...] = ()


def parse_parent_span(traceparent: bytes | None) -> ParentSpan | None:
    """Return the span in a `traceparent` header of version 00; None if it is missing or invalid."""
    match = _PARENT.fullmatch(traceparent) if traceparent else None
    if match is None:
        return None
    trace, span, flags = (int(part, 16) for part in match.groups())
    return ParentSpan(trace, span, flags) if trace and span else None


@contextmanager
def use_parent_span(parent: ParentSpan | None) -> Generator[None]:
    """Make `parent` the parent span of runs within the block."""
    token = _CURRENT.set(parent)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_parent_span() -> ParentSpan | None:
    """Return the caller's span for the current request; None if the request named none."""
    return _CURRENT.get()


def spans_of(run: Run, tenant: str) -> SpanTree:
    """Return the run's spans: the workflow, then plans and steps, then their chats and tools."""
    children: list[SpanTree] = []
    for number, round_ in enumerate(run.rounds):
        children.append(_plan_span(run, round_, number))
        children += [_agent_span(run, step, round_, number) for step in round_.steps]
    attributes: dict[str, Value] = {
        OPERATION: INVOKE_WORKFLOW,
        WORKFLOW_NAME: run.header.model,
        RUN_ID: run.id,
        TENANT: tenant,
        OUTCOME: run.outcome.value,
        **_usage_attributes(run.usage),
        **_cost_attributes(run.cost),
    }
    name, span = f"{INVOKE_WORKFLOW} {run.header.model}".rstrip(), TimeSpan(0.0, run.seconds)
    return SpanTree(
        name=name, span=span, attributes=attributes, error=run.error_code, children=tuple(children)
    )


def _plan_span(run: Run, round_: Round, number: int) -> SpanTree:
    attributes: dict[str, Value] = {OPERATION: PLAN, AGENT_NAME: run.header.conductor}
    attributes |= {ROUND: number, DRAFTS: len(round_.drafts)}
    usage = sum((draft.usage for draft in round_.conductor_drafts), Usage())
    chats: tuple[SpanTree, ...] = ()
    if usage.calls:
        about: dict[str, Value] = {OPERATION: CHAT, REQUEST_MODEL: run.header.conductor}
        chats = (
            SpanTree(
                name=f"{CHAT} {run.header.conductor}",
                span=round_.planning,
                attributes=about | _usage_attributes(usage),
            ),
        )
    return SpanTree(
        name=f"{PLAN} {run.header.conductor}",
        span=round_.planning,
        attributes=attributes,
        children=chats,
    )


def _agent_span(run: Run, step: StepRun, round_: Round, number: int) -> SpanTree:
    attributes: dict[str, Value] = {OPERATION: INVOKE_AGENT, AGENT_NAME: step.worker}
    attributes |= {ROUND: number, STEP: step.index, ATTEMPTS: len(step.attempts)}
    if round_.workflow is not None:
        attributes[ACCESS] = list(round_.workflow.steps[step.index].access)
    if step.planned != step.worker:
        attributes[PLANNED] = step.planned
    error = step.result.code if isinstance(step.result, Failure) else None
    chats = () if step.request is None else tuple(_chat_spans(run, step))
    name = f"{INVOKE_AGENT} {step.worker}"
    return SpanTree(name=name, span=step.span, attributes=attributes, error=error, children=chats)


def _chat_spans(run: Run, step: StepRun) -> Generator[SpanTree]:
    """Yield a span for each failed attempt of a step, then for the call with its result."""
    start = step.span.start
    for attempt in step.attempts:
        span = TimeSpan(start, max(start, attempt.at))
        yield _chat_span(run, attempt.worker, attempt.failure, span)
        start = span.end
    yield _chat_span(run, step.worker, step.result, TimeSpan(start, max(start, step.span.end)))


def _chat_span(run: Run, worker: str, result: Reply | Failure, span: TimeSpan) -> SpanTree:
    known = next((member for member in run.header.pool if member.id == worker), None)
    model = known.model if known else worker
    is_tool = known is not None and not known.is_model and IMAGE not in known.tags
    operation, name = (EXECUTE_TOOL, worker) if is_tool else (CHAT, model)
    attributes: dict[str, Value] = {OPERATION: operation}
    attributes[TOOL_NAME if is_tool else REQUEST_MODEL] = name
    attributes |= _usage_attributes(result.usage) | _cost_attributes(result.cost)
    return SpanTree(
        name=f"{operation} {name}",
        span=span,
        attributes=attributes,
        error=result.code if isinstance(result, Failure) else None,
        children=tuple(_tool_spans(result, span)) if isinstance(result, Reply) else (),
    )


def _tool_spans(reply: Reply, chat: TimeSpan) -> Generator[SpanTree]:
    """Yield a span for each tool call that this server ran during a model's chat."""
    for call in reply.server_calls:
        if not call.seconds:  # the provider ran the tool and does not report its times
            continue
        start = min(chat.start + call.began, chat.end)
        attributes: dict[str, Value] = {OPERATION: EXECUTE_TOOL, TOOL_NAME: call.name}
        attributes |= {TOOL_CALL_ID: call.id} | _cost_attributes(call.cost)
        yield SpanTree(
            name=f"{EXECUTE_TOOL} {call.name}",
            span=TimeSpan(start, min(start + call.seconds, chat.end)),
            attributes=attributes,
            error=call.error or ("failed" if call.failure else None),
        )


def _usage_attributes(usage: Usage) -> dict[str, Value]:
    counts: dict[str, Value] = {INPUT_TOKENS: usage.input, OUTPUT_TOKENS: usage.output}
    return counts | {CACHED_TOKENS: usage.cached} if usage.cached else counts


def _cost_attributes(cost: Cost) -> dict[str, Value]:
    """Return the exact dollars as text; if a call had no price, only the number of such calls."""
    return {UNPRICED: cost.unpriced_calls} if cost.unpriced_calls else {COST: f"{cost.usd:f}"}


ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
LAST_SECONDS = 2.0
"""Maximum seconds for sending the last spans, so that no collector keeps the server running."""


@final
class RunSpanExporter:
    """Exports the spans of each run that has ended; the provider batches them in its own thread."""

    def __init__(self, provider: TracerProvider) -> None:
        """Export through `provider`, which `close` shuts down."""
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("batuta", package_version())

    def export_run(self, run: Run, tenant: str) -> None:
        """Export the spans of a run that has ended."""
        began = int(run.header.started * 1e9)
        self._send(spans_of(run, tenant), began, _parent_context(current_parent_span()))

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Send the remaining spans, waiting at most `seconds` for the collector. Blocks."""
        sending = Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(seconds)

    def _send(self, tree: SpanTree, began: int, context: Context | None) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context  # noqa: PLC0415 - an extra, and only when used

        kind = SpanKind.CLIENT if tree.attributes[OPERATION] == CHAT else SpanKind.INTERNAL
        start, end = (began + int(at * 1e9) for at in (tree.span.start, tree.span.end))
        attributes = dict(tree.attributes)
        if tree.error is not None:
            attributes[ERROR_TYPE] = tree.error
        span = self._tracer.start_span(tree.name, context, kind, attributes, start_time=start)
        if tree.error is not None:
            span.set_status(Status(StatusCode.ERROR, tree.error))
        for child in tree.children:
            self._send(child, began, set_span_in_context(span))
        span.end(end)


@asynccontextmanager
async def open_span_exporter(environ: Mapping[str, str]) -> AsyncGenerator[RunSpanExporter | None]:
    """Yield the exporter to an OpenTelemetry collector, or None if none is configured.

    `environ` is read for whether there is a collector, and for the service's name. OpenTelemetry
    reads the collector's endpoint and headers from `os.environ`.

    Raises:
        ConfigError: a collector is configured, and the extra is not installed or OpenTelemetry
            refuses one of its variables.
    """
    variable = next((name for name in ENDPOINT_VARIABLES if environ.get(name)), None)
    if variable is None:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - same
    except ImportError:
        message = f"{variable} is set, but OpenTelemetry is not installed: {install_hint('otel')}"
        raise ConfigError(message) from None
    name = environ.get("OTEL_SERVICE_NAME", "batuta")
    try:
        provider = TracerProvider(
            resource=Resource.create({"service.name": name}),
            shutdown_on_exit=False,  # else the exit would wait for the collector a second time
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ConfigError(f"OpenTelemetry refuses its variables (OTEL_…): {error}") from None
    exporter = RunSpanExporter(provider)
    try:
        yield exporter
    finally:
        with CancelScope(shield=True):
            await run_sync(exporter.close)


def _parent_context(parent: ParentSpan | None) -> Context | None:
    """Return the caller's span as an OpenTelemetry context."""
    if parent is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - an extra, and only when used

    flags = trace.TraceFlags(parent.flags)
    given = trace.SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(given))
