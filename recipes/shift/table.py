"""What the shift does to each way of answering, and what retraining brings back.

Runs every system in the world before the change, on its mix of questions, and in the world after
it, on the new mix; prints the table and writes it into RESULT.md. What was set up before the change
stays as it was in the rows that say so. `python recipes/shift/table.py --help`
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from batuta.clients import HttpTransport
from batuta.conductors import FixedConductor, LLMConductor
from batuta.config.conductors import open_trained
from batuta.config.load import load_config
from batuta.config.settings_file import read_settings
from batuta.core import MAX_STEPS, Conductor, Plan, PlanningContext, Pool, Question, Task, WorkerId
from batuta.errors import ConfigError
from batuta.lab.baselines import (
    ConductorSolver,
    MixtureOfAgents,
    SingleWorker,
    Solver,
    SolverContext,
    fixed_pipeline,
)
from batuta.lab.evals.stats import wilson_interval
from batuta.lab.train.run_folder import METRICS_FILE, read_jsonl
from batuta.lab.train.settings import TrainSettings
from batuta.lab.worlds import TRAINING_FAMILIES, HandWrittenClient, draw_tasks, grade_answer
from batuta.lab.worlds.drawn_tasks import CALIBRATION_SEED, TEST_SEED

HERE = Path(__file__).parent
BEFORE = {f"rehearsal:{family}": 1 / len(TRAINING_FAMILIES) for family in TRAINING_FAMILIES}
"""The mix that the conductor was trained on."""
OPENS, CLOSES = "<!-- measured -->", "<!-- end -->"
CALLS_OF = ("harp", "celesta")
CURVE = "![reward by step](reward.png)"
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class World:
    """A pool, and what it is asked."""

    solver_context: SolverContext
    questions: Sequence[Task]
    measured: Pool
    """The pool with the strengths that an engineer would measure in this world."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one world."""

    right: int
    asked: int
    tokens: float
    """A question, the conductor's own included."""
    called: Mapping[str, int]
    """Calls of each worker."""

    def __str__(self) -> str:
        """Percent and its 95 % interval."""
        low, high = (100 * bound for bound in wilson_interval(self.right, self.asked))
        return f"{100 * self.right / self.asked:.1f} ({low:.1f}–{high:.1f})"

    def share(self, worker: str) -> float:
        """Of the calls, those of that worker."""
        return self.called.get(worker, 0) / sum(self.called.values())


def drawn(mix: Mapping[str, float], count: int, seed: int) -> list[Task]:
    """About `count` questions in the proportions of the mix, each once."""
    found = {
        task.id: task
        for name, share in mix.items()
        for task in draw_tasks(name.partition(":")[2], round(count * share), seed)
    }
    return list(found.values())


async def measure_solver(
    solver: Solver, solver_context: SolverContext, questions: Sequence[Task]
) -> Row:
    """The solver's answers to all questions, graded and counted."""
    right: list[float] = []
    tokens: list[int] = []
    called: Counter[str] = Counter()
    waiting = iter(enumerate(questions))

    async def work() -> None:
        for number, task in waiting:
            run = await solver.answer(Question.of(task.question), solver_context, number)
            right.append(grade_answer(task, run.answer or "").score or 0.0)
            tokens.append(run.usage.total)
            called.update(str(step.worker) for step in run.steps)

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work)
    return Row(round(sum(right)), len(right), sum(tokens) / len(tokens), called)


async def opened(http: HttpTransport, pool: str, mix: Mapping[str, float], count: int) -> World:
    """The world with fresh questions, and its workers measured on others."""
    ensemble = await load_config(http, pool=pool, conductor="best", time_scale=0.0)
    solver_context = SolverContext(pool=ensemble.pool, clients=ensemble.clients)
    others = drawn(mix, count, CALIBRATION_SEED)
    strengths = {
        worker.id: await measure_solver(SingleWorker(worker.id), solver_context, others)
        for worker in ensemble.pool
    }
    measured = Pool(
        tuple(
            replace(worker, strength=strengths[worker.id].right / strengths[worker.id].asked)
            for worker in ensemble.pool
        )
    )
    return World(solver_context, drawn(mix, count, TEST_SEED), measured)


async def as_set_up(conductor: Conductor, pool: Pool) -> ConductorSolver:
    """The workflow that the conductor writes over that pool, kept for good.

    Raises:
        ConfigError: it writes none.
    """
    context = PlanningContext(
        question=Question.of("Any."), pool=pool, max_steps=max(MAX_STEPS, MixtureOfAgents().calls)
    )
    decision = await conductor.plan(context)
    if not isinstance(decision, Plan):
        raise ConfigError(f"{conductor.name} writes no workflow")
    workflow = decision.workflow
    return ConductorSolver(FixedConductor(conductor.name, lambda _: workflow), calls=len(workflow))


async def systems(world: World) -> dict[str, tuple[WorkerId, Solver]]:
    """What an engineer sets up in that world: its name, its best worker, and the solver."""
    best = world.measured.ranked()[0].id
    return {
        "best single worker": (best, SingleWorker(best)),
        "fixed pipeline": (best, await as_set_up(fixed_pipeline(), world.measured)),
        "Mixture-of-Agents": (best, await as_set_up(MixtureOfAgents(), world.measured)),
    }


async def measured(
    settings: TrainSettings, first: Path, retrained: Path | None, count: int
) -> list[str]:
    """The lines of the table and what follows it.

    Args:
        settings: of the retraining, which name the pool and the mix of questions.
        first: the folder of the policy before it.
        retrained: of the policy after it; None: it is not trained yet.
        count: questions in each world.
    """
    lines = ["| system | before | after | tokens after |", "|---|---|---|---|"]

    def add(name: str, before: Row | None, after: Row) -> None:
        lines.append(f"| {name} | {before or '–'} | {after} | {after.tokens:,.0f} |")

    async with HttpTransport() as http:
        old = await opened(http, "rehearsal", BEFORE, count)
        new = await opened(http, settings.pool.source, settings.curriculum[0].tasks, count)

        async def both(solver: Solver) -> tuple[Row, Row]:
            return (
                await measure_solver(solver, old.solver_context, old.questions),
                await measure_solver(solver, new.solver_context, new.questions),
            )

        anew = await systems(new)
        for name, (best, solver) in (await systems(old)).items():
            add(f"{name}, as set up before ({best} the best)", *await both(solver))
            again, rewired = anew[name]
            row = await measure_solver(rewired, new.solver_context, new.questions)
            add(f"{name}, set up anew ({again} the best)", None, row)
        written = LLMConductor(name="rehearsal/hand-written", client=HandWrittenClient(0))
        add("hand-written conductor, by the descriptions", *await both(ConductorSolver(written)))
        before, after = await both(ConductorSolver(open_trained(first)))
        add("**conductor, as trained before**", before, after)
        rows = {"before": before, "after": after}
        if retrained is not None:
            learned = ConductorSolver(open_trained(retrained))
            row = await measure_solver(learned, new.solver_context, new.questions)
            add("**conductor, retrained**", None, row)
            rows["retrained"] = row
    lines += ["", f"{len(old.questions)} questions before, {len(new.questions)} after.", ""]
    for worker in CALLS_OF:
        shares = ", ".join(f"{name} {100 * row.share(worker):.0f} %" for name, row in rows.items())
        lines.append(f"Of the conductor's calls, those of {worker}: {shares}.")
    return [*lines, *spent(retrained)]


def spent(retrained: Path | None) -> list[str]:
    """How long the retraining took, by the run folder that the policy lies in."""
    steps = read_jsonl(retrained.parent / METRICS_FILE) if retrained else []
    seconds = sum(step["step_time"] for step in steps)
    if not steps:
        return []
    return ["", f"Retraining: {len(steps)} steps, {seconds / 60:.1f} minutes.", "", CURVE]


def main() -> None:
    """Measure, print, and write RESULT.md."""
    parser = argparse.ArgumentParser(description="The table of the shift.")
    parser.add_argument("--config", type=Path, default=HERE / "shift.toml")
    parser.add_argument("--start", type=Path, help="the policy before; by default the config's")
    parser.add_argument("--policy", type=Path, help="the retrained one; without: a dash")
    parser.add_argument("--limit", type=int, default=1000, help="questions in each world")
    parser.add_argument("--write", action="store_true", help="put the table into RESULT.md")
    options = parser.parse_args()
    settings = read_settings(options.config, TrainSettings)
    first = options.start or Path(settings.policy.start)
    lines = anyio.run(measured, settings, first, options.policy, options.limit)
    print("\n".join(lines))
    if options.write:
        page = HERE / "RESULT.md"
        head, _, rest = page.read_text("utf-8").partition(OPENS)
        tail = rest.partition(CLOSES)[2]
        page.write_text("\n".join([head + OPENS, "", *lines, "", CLOSES]) + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
