"""Systems that keep a limit on mean calls, measured on questions reserved for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from batuta.core import Task
from batuta.lab.tune.systems import SystemTable, TunedSystem

MeasureCalls = Callable[[TunedSystem], Awaitable[float]]
"""Returns the mean calls of a question; a question that did not run counts as expected."""
_TIGHTENINGS, _LEAST_TIGHTENING = 6, 0.02
"""How often the limit is tightened, and by what share of it at least."""


async def build_within(
    table: SystemTable,
    name: str,
    tasks: Sequence[Task],
    measure: MeasureCalls,
    *,
    most: float | None,
    least_weight: float,
) -> TunedSystem:
    """Return the system of that name that keeps the limit on these questions.

    The weight of a call follows from the calls that the search expects; if more are measured, the
    limit is tightened by the difference. If that does not suffice, each workflow counts with the
    most calls that it can make.

    Args:
        table: the results of the search.
        name: the name of the system.
        tasks: the questions of the selection.
        measure: measures the mean calls of a system on them.
        most: the limit on the mean calls of a question; None for no limit.
        least_weight: the lowest weight of a call.
    """
    if most is None:
        return table.build(name, least_weight)
    count_c, target = table.count_cells(tasks), most
    for _ in range(_TIGHTENINGS):
        weight = table.find_weight(name, count_c, most=target, least=least_weight)
        system = table.build(name, weight)
        calls = await measure(system)
        if calls <= most:
            return system
        target -= max(calls - most, _LEAST_TIGHTENING * most)
    longest = table.at_most_calls()
    weight = longest.find_weight(name, count_c, most=most, least=least_weight)
    return longest.build(name, weight)
