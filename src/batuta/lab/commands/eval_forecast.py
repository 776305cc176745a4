"""Messages of `batuta eval` about its calls and their price before it makes any."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from batuta.cli.json_output import print_json
from batuta.lab.commands.eval_options import EvalCommandOptions
from batuta.lab.commands.eval_output import print_message
from batuta.lab.commands.eval_subject import open_eval_subject
from batuta.rendering.terminal import write_output

if TYPE_CHECKING:
    from batuta.lab.evals.forecast import EvalForecast


async def foretell_calls(options: EvalCommandOptions) -> None:
    """Print what would be asked; nobody is called and nothing is written.

    Raises:
        ConfigError: nothing is paid for these questions, or there is no such system.
    """
    from batuta.lab.evals import EvalOptions, ResultLog, forecast_parts  # noqa: PLC0415 - loads numpy
    from batuta.lab.evals.result_log import RESULTS_FILE  # noqa: PLC0415 - same

    async with AsyncExitStack() as stack:
        parts, _ = await open_eval_subject(options, stack)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        if (known := options.output.out / RESULTS_FILE).is_file():
            shutil.copyfile(known, folder / RESULTS_FILE)
        terms = EvalOptions(
            seeds=options.questions.all_seeds,
            sub_pool=options.pool.pools,
            pool_seed=options.questions.seed,
        )
        found = await forecast_parts(
            parts,
            options.system_names,
            options=terms,
            result_log=stack.enter_context(ResultLog(folder)),
            equal=options.systems.equal,
        )
    for note in found.notes:
        print_message(note)
    if options.output.json:
        every = {**found.systems, "total": found.total}
        print_json({name: asdict(calls) for name, calls in every.items()})
        return
    for name, calls in found.systems.items():
        write_output(f"{name:24} {calls}\n")
    over = compare_budget(found, options.limits.budget)
    write_output(f"{found}{over}; nobody was called\n")


def compare_budget(expected: EvalForecast, budget: float | None) -> str:
    """Return a clause that warns of a budget that may not suffice, or an empty text."""
    if budget is None or expected.total.usd <= Decimal(str(budget)):
        return ""
    return f", more than the budget of ${budget:g}"
