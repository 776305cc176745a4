"""What asking the same question again tells in the rehearsal, whose workers are simulated.

    python recipes/confidence/simulated.py

Each worker alone answers 600 drawn questions and is asked again three times; runs are conducted, graded and fitted as
`batuta eval --calibrate` does it. What is told was measured on folds that the fit had not seen.
"""

from __future__ import annotations

import anyio

from batuta.clients import HttpTransport
from batuta.conductors import single_worker
from batuta.config.load import load_config
from batuta.core import Question
from batuta.engine import RunSettings, conduct
from batuta.engine.confidence import ConfidenceModel, SampleSetting
from batuta.lab.evals.confidence import fit_confidence, graded_run
from batuta.lab.evals.task_sets import open_tasks
from batuta.lab.tasks.graders import grade_answer

QUESTIONS, SAMPLES, SEED = 600, 3, 1


async def measure_worker(config, tasks, worker):
    """The fit of one worker's runs."""
    model = ConfidenceModel(samples=SampleSetting(count=SAMPLES), collects=True)
    graded = []
    for number, task in enumerate(tasks.tasks):
        run = await conduct(
            Question.of(task.question),
            single_worker(worker.id),
            config.pool,
            config.clients,
            seed=SEED * 1_000_003 + number,
            settings=RunSettings(confidence=model),
        )
        score = (await grade_answer(tasks.grade, task, run.answer)).score if run.answer else 0.0
        if score is not None and (one := graded_run(run, score)) is not None:
            graded.append(one)
    return fit_confidence(graded).stored.conductors.get(f"single/{worker.id}")


async def main():
    """Print the table."""
    print("| worker | right | calibration error without | with | `auroc` without | with | right of the surest 80 % without | with |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    async with HttpTransport() as http:
        config = await load_config(http, pool="rehearsal", environ={}, time_scale=0.0)
        tasks = open_tasks("rehearsal", QUESTIONS, 0, SEED)
        for worker in config.pool:
            fitted = await measure_worker(config, tasks, worker)
            if fitted is None or fitted.sampled is None:
                continue
            without, told = fitted.sampled.without, fitted.sampled.measured
            print(
                f"| {worker.id} | {told.right:.1%} | {without.calibration_error:.3f} | {told.calibration_error:.3f} | {without.auroc:.2f}"
                f" | {told.auroc:.2f} | {without.right_at_80:.1%} | {told.right_at_80:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    anyio.run(main)
