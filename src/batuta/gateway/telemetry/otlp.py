"""Runs as spans over OTLP: the extra `[otel]`, on where `OTEL_EXPORTER_OTLP_ENDPOINT` is set."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, final

from anyio import CancelScope
from anyio.to_thread import run_sync

from batuta.core import Run
from batuta.distribution import install_hint, package_version
from batuta.errors import ConfigError
from batuta.gateway.telemetry.spans import (
    ERROR_TYPE,
    ParentSpan,
    SpanTree,
    current_parent_span,
    spans_of,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@final
class RunSpanExporter:
    """Sends the spans of each run when it has ended, in batches and from a thread of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        """Sends through `provider`, which is whoever's gave it, until `close`."""
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("batuta", package_version())

    def export_run(self, run: Run, tenant: str) -> None:
        """A run ended."""
        began = int(run.header.started * 1e9)
        self._send(spans_of(run, tenant), began, _parent_context(current_parent_span()))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _send(self, tree: SpanTree, began: int, context: Context | None) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context  # noqa: PLC0415 - an extra, and only when used

        kind = SpanKind.CLIENT if not tree.children else SpanKind.INTERNAL
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
    """Yield the way to the collector that the environment names, closed in the end; or None.

    Raises:
        ConfigError: it names one, and the extra is not installed.
    """
    switch = next((name for name in ENDPOINT_VARIABLES if environ.get(name)), None)
    if switch is None:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - same
    except ImportError:
        what = f"{switch} is set and its library is missing: {install_hint('otel')}"
        raise ConfigError(what) from None
    name = environ.get("OTEL_SERVICE_NAME", "batuta")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    traces = RunSpanExporter(provider)
    try:
        yield traces
    finally:
        with CancelScope(shield=True):
            await run_sync(traces.close)


def _parent_context(parent: ParentSpan | None) -> Context | None:
    """Return the caller's span as OpenTelemetry wants it."""
    if parent is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - an extra, and only when used

    flags = trace.TraceFlags(parent.flags)
    given = trace.SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(given))
