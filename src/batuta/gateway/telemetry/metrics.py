"""What the server counts, for `GET /metrics` in Prometheus' text form; no content, no run's id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Generic, TypeVar, final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from batuta.clients.circuit_breaker import BreakerState, WorkerHealth
from batuta.core import (
    Cost,
    Event,
    EventHandler,
    Failure,
    MalformedPlan,
    Round,
    RoundPlanned,
    Run,
    StepDelta,
    StepRun,
    Usage,
    WorkerId,
)
from batuta.core.drift import DriftKind, DriftSide, DriftState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CONDUCTOR_LABEL = "(conductor)"
"""The worker to whom the conductor's own tokens are counted."""
_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)

_Metric = TypeVar("_Metric", Counter, Histogram)
ReadHealth = Callable[[], Mapping[WorkerId, WorkerHealth]]
"""How the workers do that are watched."""
ReadGauges = Callable[[], Mapping[str, tuple[str, float]]]
"""What stands at this moment: by name, what it is and how much."""
ReadDrift = Callable[[], Mapping[str, Mapping[DriftKind, DriftState]]]
"""How each worker does beside what was measured of it."""


@final
class Metrics:
    """The counters of one server."""

    def __init__(self, gauges: ReadGauges, health: ReadHealth, drift: ReadDrift = dict) -> None:
        """Counts from nothing.

        Args:
            gauges: asked whenever the metrics are read.
            health: asked then too.
            drift: asked then too.
        """
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> _LabelledMetric[Counter]:
            return _LabelledMetric(Counter(f"batuta_{name}", what, labels, registry=registry))

        def seconds(name: str, what: str, *labels: str) -> _LabelledMetric[Histogram]:
            whole = f"batuta_{name}_seconds"
            return _LabelledMetric(
                Histogram(whole, what, labels, buckets=_BUCKETS, registry=registry)
            )

        self._requests = counter("requests", "Requests answered.", "route", "method", "status")
        self._latency = seconds("request", "Until the last byte of an answer.", "route")
        self._refusals = counter("refusals", "Requests refused, by the error's code.", "code")
        self._runs = counter("runs", "Runs ended.", "model", "outcome", "tenant")
        self._duration = seconds("run", "From a run's begin to its end.", "model")
        self._first = seconds("first_token", "Until the answer's first word.", "model")
        self._explored = counter("explored_runs", "Runs that tried something else.", "model")
        self._rounds = counter("rounds", "Workflows played.", "model")
        self._malformed = counter("malformed_plans", "Drafts that were no workflow.", "model")
        self._steps = counter("steps", "Steps ended.", "worker", "result")
        self._attempts = counter("failed_attempts", "Calls tried again.", "worker", "code")
        self._substituted = counter("substitutions", "Steps another worker took.", "worker")
        self._tokens = counter("tokens", "Tokens of all calls.", "worker", "tenant", "kind")
        self._dollars = counter("dollars", "Of priced calls; the ledger has them exactly.", "worker", "tenant")  # fmt: skip  # noqa: E501
        self._unpriced = counter("unpriced_calls", "Calls without a known price.", "worker")
        registry.register(_LiveGauges(gauges, health, drift))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def count_error(self, code: str) -> None:
        """A request was refused."""
        self._refusals.labels(code).inc()

    def count_run(self, run: Run, tenant: str) -> None:
        """A run ended."""
        model = run.header.model or "(none)"
        self._runs.labels(model, run.outcome.value, tenant).inc()
        self._duration.labels(model).observe(run.seconds)
        if run.header.exploration is not None and run.header.exploration.explored:
            self._explored.labels(model).inc()
        for played in run.rounds:
            self._count_round(played, model, tenant)
            for step in played.steps:
                self._count_step(step, tenant)

    def time_first_token(self, model: str, emit: EventHandler | None) -> EventHandler | None:
        """`emit`, noting when the answer's first word comes; None if nobody listens."""
        return None if emit is None else _FirstTokenTimer(self._first.labels(model), emit).on_event

    def _count_round(self, played: Round, model: str, tenant: str) -> None:
        if played.workflow is not None:
            self._rounds.labels(model).inc()
        bad = len(played.drafts) + isinstance(played.decision, MalformedPlan)
        if bad:
            self._malformed.labels(model).inc(bad)
        for draft in played.conductor_drafts:
            self._count_usage(CONDUCTOR_LABEL, tenant, draft.usage, draft.cost)

    def _count_step(self, step: StepRun, tenant: str) -> None:
        result = step.result.code if isinstance(step.result, Failure) else "answered"
        self._steps.labels(step.worker, result).inc()
        self._count_usage(step.worker, tenant, step.result.usage, step.result.cost)
        for attempt in step.attempts:
            self._attempts.labels(attempt.worker, attempt.failure.code).inc()
            self._count_usage(attempt.worker, tenant, attempt.failure.usage, attempt.failure.cost)
        if step.worker != step.planned:
            self._substituted.labels(step.planned).inc()

    def _count_usage(self, worker: str, tenant: str, usage: Usage, cost: Cost) -> None:
        kinds = (
            ("input", usage.input - usage.cached),
            ("cached", usage.cached),
            ("output", usage.output - usage.reasoning),
            ("reasoning", usage.reasoning),
        )
        for kind, tokens in kinds:
            if tokens > 0:
                self._tokens.labels(worker, tenant, kind).inc(tokens)
        if cost.usd:
            self._dollars.labels(worker, tenant).inc(float(cost.usd))
        if cost.unpriced_calls:
            self._unpriced.labels(worker).inc(cost.unpriced_calls)


@final
class _LabelledMetric(Generic[_Metric]):
    """A metric that is told apart by labels: each of its parts is looked up once by the library.

    The library checks, converts and locks at each look-up, which costs more than the counting.
    """

    def __init__(self, metric: _Metric) -> None:
        self._metric = metric
        self._parts: dict[tuple[str, ...], _Metric] = {}

    def labels(self, *values: str) -> _Metric:
        """The part of those labels."""
        part = self._parts.get(values)
        if part is None:
            part = self._parts[values] = self._metric.labels(*values)
        return part


@final
class _FirstTokenTimer:
    """Hears a run until the first word of its last step."""

    def __init__(self, first: Histogram, emit: EventHandler) -> None:
        self._first = first
        self._emit = emit
        self._started_at = perf_counter()
        self._last: int | None = None

    async def on_event(self, event: Event) -> None:
        match event:
            case RoundPlanned(played=Round(workflow=workflow)) if workflow is not None:
                self._last = len(workflow) - 1
            case StepDelta(index=index, delta=delta) if index == self._last and delta.text:
                self._first.observe(perf_counter() - self._started_at)
                self._last = None
            case _:
                pass
        await self._emit(event)


@final
class _LiveGauges(Collector):
    """What is read at the moment it is asked for."""

    def __init__(self, gauges: ReadGauges, health: ReadHealth, drift: ReadDrift) -> None:
        self._gauges = gauges
        self._health = health
        self._drift = drift

    def collect(self) -> Iterable[Metric]:
        """The gauges, and how the workers do."""
        for name, (what, value) in self._gauges().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"batuta_{name}", what, value=value)
        state = GaugeMetricFamily("batuta_breaker", "1: in this state.", labels=["worker", "state"])
        opened = CounterMetricFamily("batuta_breaker_opened", "Times opened.", labels=["worker"])
        for worker, health in self._health().items():
            for one in BreakerState:
                state.add_metric([worker, one.value], float(health.state is one))
            opened.add_metric([worker], health.opened)
        yield from (state, opened, *self._collect_drift())

    def _collect_drift(self) -> Iterable[Metric]:
        labels = ["worker", "kind"]
        left = GaugeMetricFamily(
            "batuta_worker_drift", "1: outside its interval.", labels=[*labels, "side"]
        )
        seen = CounterMetricFamily(
            "batuta_worker_drift_values", "Values compared with the interval.", labels=labels
        )
        for worker, states in self._drift().items():
            for kind, state in states.items():
                for side in (DriftSide.BELOW, DriftSide.ABOVE):
                    left.add_metric([worker, kind, side], float(state.side is side))
                seen.add_metric([worker, kind], state.count)
        return left, seen
