"""Metrics of the server for `GET /metrics` in Prometheus' text format; no content, no run ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from time import perf_counter, time
from typing import final

import anyio.to_thread
from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from batuta.clients.resilience import BreakerState, WorkerHealth
from batuta.core import (
    Cost,
    Delta,
    Event,
    EventHandler,
    Failure,
    MalformedPlan,
    Round,
    Run,
    RunFinished,
    StepDelta,
    StepRun,
    Usage,
    WorkerId,
)
from batuta.engine.planning import PLAN
from batuta.store.drift import DriftKind, DriftSide, DriftState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CONDUCTOR_LABEL = "(conductor)"
"""The worker label under which the conductor's own tokens are counted."""
_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
"""The upper bounds of the histograms' buckets, in seconds."""

ReadHealth = Callable[[], Mapping[WorkerId, WorkerHealth]]
"""Returns the health of each watched worker."""
ReadGauges = Callable[[], Mapping[str, tuple[str, float]]]
"""Returns descriptions and current values by name; a name that ends in `_total` is a counter's."""
ReadDrift = Callable[[], Mapping[str, Mapping[DriftKind, DriftState]]]
"""Returns the drift of each worker from its measured behaviour."""


@final
class Metrics:
    """The metrics of one server."""

    def __init__(self, gauges: ReadGauges, health: ReadHealth, drift: ReadDrift = dict) -> None:
        self._registry = registry = CollectorRegistry()
        counted: list[_Counter | _Histogram] = []

        def counter(name: str, description: str, *labels: str) -> _Counter:
            counted.append(made := _Counter(f"batuta_{name}", description, labels))
            return made

        def seconds(name: str, description: str, *labels: str) -> _Histogram:
            counted.append(made := _Histogram(f"batuta_{name}_seconds", description, labels))
            return made

        self._requests = counter("requests", "Requests answered.", "route", "method", "status")
        self._latency = seconds("request", "Time to the last byte of an answer.", "route")
        self._refusals = counter("refusals", "Requests refused, by the error's code.", "code")
        self._runs = counter("runs", "Runs ended.", "model", "outcome", "tenant")
        self._duration = seconds("run", "Duration of a run.", "model")
        self._first = seconds("first_token", "Time to the answer's first token or end.", "model")
        self._explored = counter("explored_runs", "Runs that explored an alternative.", "model")
        self._rounds = counter("rounds", "Workflows executed.", "model")
        self._malformed = counter("malformed_plans", "Drafts that were not a workflow.", "model")
        self._rules = counter("plan_rules", "Actions of plan and approval rules.", "rule", "action")
        self._steps = counter("steps", "Steps ended.", "worker", "result")
        self._attempts = counter("failed_attempts", "Failed calls, retried.", "worker", "code")
        self._substituted = counter("substitutions", "Steps given to another worker.", "worker")
        self._tokens = counter("tokens", "Tokens of all calls.", "worker", "tenant", "kind")
        self._dollars = counter("dollars", "Cost of priced calls, rounded; exact in the ledger.", "worker", "tenant")  # fmt: skip  # noqa: E501
        self._unpriced = counter("unpriced_calls", "Calls without a known price.", "worker")
        self._counted = _CountedMetrics(counted)
        registry.register(self._counted)
        self._live = _LiveGauges(gauges, health, drift)
        registry.register(self._live)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    async def render(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        The text is made in a thread, since many tenants make it long.
        """
        self._counted.read()
        self._live.read()
        return await anyio.to_thread.run_sync(generate_latest, self._registry)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.add(route, method, str(status))
        self._latency.observe(seconds, route)

    def count_error(self, code: str) -> None:
        """Count a refused request by its error's code."""
        self._refusals.add(code)

    def count_run(self, run: Run, tenant: str) -> None:
        """Count a run that has ended."""
        model = run.header.model or "(none)"
        self._runs.add(model, run.outcome.value, tenant)
        self._duration.observe(run.seconds, model)
        if run.header.exploration is not None and run.header.exploration.explored:
            self._explored.add(model)
        for act in run.guards:
            if act.where == PLAN:
                self._rules.add(act.policy, act.action)
        for round_ in run.rounds:
            self._count_round(round_, model, tenant)
            for step in round_.steps:
                self._count_step(step, tenant)

    def time_first_token(self, model: str, emit: EventHandler | None) -> EventHandler | None:
        """Return `emit` with a timer of the answer's first text; None if `emit` is None."""
        return None if emit is None else _FirstTokenTimer(self._first, model, emit).on_event

    def _count_round(self, round_: Round, model: str, tenant: str) -> None:
        if round_.workflow is not None:
            self._rounds.add(model)
        malformed = len(round_.drafts) + isinstance(round_.decision, MalformedPlan)
        if malformed:
            self._malformed.add(model, amount=malformed)
        for draft in round_.conductor_drafts:
            if draft.usage.calls:
                self._count_usage(CONDUCTOR_LABEL, tenant, draft.usage, draft.cost)

    def _count_step(self, step: StepRun, tenant: str) -> None:
        result = step.result.code if isinstance(step.result, Failure) else "answered"
        self._steps.add(step.worker, result)
        self._count_usage(step.worker, tenant, step.result.usage, step.result.cost)
        for attempt in step.attempts:
            self._attempts.add(attempt.worker, attempt.failure.code)
            self._count_usage(attempt.worker, tenant, attempt.failure.usage, attempt.failure.cost)
        if step.worker != step.planned:
            self._substituted.add(step.planned)

    def _count_usage(self, worker: str, tenant: str, usage: Usage, cost: Cost) -> None:
        kinds = (
            ("input", usage.input - usage.cached),
            ("cached", usage.cached),
            ("output", usage.output - usage.reasoning),
            ("reasoning", usage.reasoning),
        )
        for kind, tokens in kinds:
            if tokens > 0:
                self._tokens.add(worker, tenant, kind, amount=tokens)
        if cost.usd:
            self._dollars.add(worker, tenant, amount=float(cost.usd))
        if cost.unpriced_calls:
            self._unpriced.add(worker, amount=cost.unpriced_calls)


@final
class _Counter:
    """A counter with labels.

    The library's metrics check, convert and lock at every count. This class only adds, and makes
    the library's samples when the metrics are read. It belongs to the event loop's thread; the
    thread that formats the metrics reads a copy.
    """

    def __init__(self, name: str, description: str, labels: tuple[str, ...]) -> None:
        self._name, self._description, self._labels = name, description, labels
        self._sums: dict[tuple[str, ...], float] = {}
        self._created: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1) -> None:
        """Increase the sum of these labels by `amount`."""
        if labels in self._sums:
            self._sums[labels] += amount
        else:
            self._sums[labels], self._created[labels] = amount, time()

    def copy(self) -> _Counter:
        copied = _Counter(self._name, self._description, self._labels)
        copied._sums, copied._created = self._sums.copy(), self._created.copy()
        return copied

    def metric(self) -> Metric:
        """Return the library's metric with a sample for each set of labels."""
        metric = Metric(self._name, self._description, "counter")
        for labels, total in self._sums.items():
            named = dict(zip(self._labels, labels, strict=True))
            metric.add_sample(f"{self._name}_total", named, total)
            metric.add_sample(f"{self._name}_created", named, self._created[labels])
        return metric


@final
class _Histogram:
    """A histogram over `_BUCKETS` with labels; see `_Counter`."""

    def __init__(self, name: str, description: str, labels: tuple[str, ...]) -> None:
        self._name, self._description, self._labels = name, description, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        """Counts per bucket (not cumulative); the last is for values above all bounds."""
        self._sums: dict[tuple[str, ...], float] = {}
        self._created: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *labels: str) -> None:
        if labels not in self._counts:
            self._counts[labels], self._sums[labels] = [0] * (len(_BUCKETS) + 1), 0.0
            self._created[labels] = time()
        self._counts[labels][bisect_left(_BUCKETS, value)] += 1
        self._sums[labels] += value

    def copy(self) -> _Histogram:
        copied = _Histogram(self._name, self._description, self._labels)
        copied._counts = {labels: counts.copy() for labels, counts in self._counts.items()}
        copied._sums, copied._created = self._sums.copy(), self._created.copy()
        return copied

    def metric(self) -> Metric:
        """Return the library's metric with cumulative buckets."""
        metric = Metric(self._name, self._description, "histogram")
        bounds = [*(repr(float(bound)) for bound in _BUCKETS), "+Inf"]
        for labels, counts in self._counts.items():
            named = dict(zip(self._labels, labels, strict=True))
            for bound, total in zip(bounds, accumulate(counts), strict=True):
                metric.add_sample(f"{self._name}_bucket", {**named, "le": bound}, total)
            metric.add_sample(f"{self._name}_count", named, sum(counts))
            metric.add_sample(f"{self._name}_sum", named, self._sums[labels])
            metric.add_sample(f"{self._name}_created", named, self._created[labels])
        return metric


@final
class _CountedMetrics(Collector):
    """Gives the library snapshots of the counters and histograms."""

    def __init__(self, counted: Sequence[_Counter | _Histogram]) -> None:
        self._counted = counted
        self._copies: Sequence[_Counter | _Histogram] = ()

    def read(self) -> None:
        """Take the snapshots that `collect` returns."""
        self._copies = tuple(counted.copy() for counted in self._counted)

    def collect(self) -> Iterable[Metric]:
        return [snapshot.metric() for snapshot in self._copies]


@final
class _FirstTokenTimer:
    """Measures the seconds to the answer's first text, else to its end, if there is an answer."""

    def __init__(self, first: _Histogram, model: str, emit: EventHandler) -> None:
        self._first = first
        self._model = model
        self._emit = emit
        self._started_at = perf_counter()
        self._is_timed = False

    async def on_event(self, event: Event) -> None:
        if not self._is_timed:
            match event:
                case StepDelta(is_answer=True, delta=Delta(text=text)) if text:
                    self._note()
                case RunFinished(answer=answer) if answer:
                    self._note()
                case _:
                    pass
        await self._emit(event)

    def _note(self) -> None:
        self._is_timed = True
        self._first.observe(perf_counter() - self._started_at, self._model)


@final
class _LiveGauges(Collector):
    """Gauges that are read on the event loop when the metrics are requested."""

    def __init__(self, gauges: ReadGauges, health: ReadHealth, drift: ReadDrift) -> None:
        self._gauges = gauges
        self._health = health
        self._drift = drift
        self._metrics: Sequence[Metric] = ()

    def read(self) -> None:
        """Read the gauges that `collect` returns."""
        self._metrics = tuple(self._read_all())

    def collect(self) -> Iterable[Metric]:
        """Return the gauges, the workers' circuit breakers and their drift."""
        return self._metrics

    def _read_all(self) -> Iterable[Metric]:
        for name, (description, value) in self._gauges().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"batuta_{name}", description, value=value)
        state = GaugeMetricFamily("batuta_breaker", "1: in this state.", labels=["worker", "state"])
        opened = CounterMetricFamily("batuta_breaker_opened", "Times opened.", labels=["worker"])
        for worker, health in self._health().items():
            for possible in BreakerState:
                state.add_metric([worker, possible.value], float(health.state is possible))
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
