"""Systems that keep a limit of mean calls, as measured on questions of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from batuta.core import Task
from batuta.lab.tune.systems import SystemTable, TunedSystem

MeasureCalls = Callable[[TunedSystem], Awaitable[float]]
"""Calls of a question on average; where a question was not run, as many as are expected."""
_TIGHTENED, _LEAST_TIGHTENING = 6, 0.02
"""Times that the limit is drawn tighter, and by what share of it at least."""


async def build_within(
    table: SystemTable,
    name: str,
    tasks: Sequence[Task],
    measure: MeasureCalls,
    *,
    most: float | None,
    least_weight: float,
) -> TunedSystem:
    """The system of that name that keeps the limit on the questions.

    The weight of a call follows from the calls that the search expects; where more are measured,
    the limit is drawn tighter by as much. If that does not suffice, workflows count with the most
    calls that they can make.

    Args:
        table: what the search found.
        name: of the system.
        tasks: questions of the selection.
        measure: the calls of a system on them.
        most: calls of a question on average; None: there is no limit.
        least_weight: a call never counts for less.
    """
    if most is None:
        return table.build(name, least_weight)
    count_c, aimed = table.count_cells(tasks), most
    for _ in range(_TIGHTENED):
        weight = table.find_weight(name, count_c, most=aimed, least=least_weight)
        system = table.build(name, weight)
        calls = await measure(system)
        if calls <= most:
            return system
        aimed -= max(calls - most, _LEAST_TIGHTENING * most)
    longest = table.at_most_calls()
    weight = longest.find_weight(name, count_c, most=most, least=least_weight)
    return longest.build(name, weight)
