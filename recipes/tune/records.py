"""Tuning on recorded answers of real models, measured on whole families that were never asked.

    BATUTA_DATA=... python recipes/tune/records.py --seeds 0,1,2,3,4 [SET ...]

No model is called: a worker's answer to a question is the first one that was recorded of it. A record
knows no answers to subtasks, so workflows have one step: what is left of the tuning are calibration,
grouping, the search among single workers, and who is nominated. The best single worker is chosen by
all answers to the questions that the tuning may ask. One line of JSON for each set and seed, then the
table. Without a set: all that are in the data folder and have three families.
"""

import argparse
import json
import time
from decimal import Decimal
from functools import cache

import anyio
import numpy as np

from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.errors import BatutaError
from batuta.tasks.recorded import load_recorded, unseen_family_split
from batuta.tasks.recorded.catalog import RECORDED_NAMES
from batuta.tune.candidate_runner import CandidateResult
from batuta.tune.context import TuneContext, TuneSettings
from batuta.tune.parts import split_questions
from batuta.tune.spending import Allowance
from batuta.tune.stages import ULTRA, TuneStage
from batuta.tune.tuning import run_tuning

MOST_BELOW = 0.3
"""Points below the best single worker that are allowed."""


class RecordMeter:
    """Counts the different answers that were asked for."""

    def __init__(self):
        self.asked, self.usd, self.limit = set(), Decimal(0), None

    @property
    def calls(self):
        """How many."""
        return len(self.asked)


class RecordRunner:
    """Answers from a record in the place of calls; see `batuta.tune.candidate_runner.Runner`."""

    def __init__(self, record):
        self.pool = self.ranked = record.pool()
        self.meter = RecordMeter()
        self._credit_qm = record.credit_qm()
        self._place = {task.id: at for at, task in enumerate(record.tasks)}
        self._model = {worker.id: at for at, worker in enumerate(self.pool)}

    def credit(self, task, candidate):
        """What the worker's first answer earned."""
        (step,) = candidate.steps
        return float(self._credit_qm[self._place[task.id], self._model[step.worker]])

    def find_result(self, task, candidate):
        """The answer, if it was asked for."""
        if (task.id, candidate) not in self.meter.asked:
            return None
        score = self.credit(task, candidate)
        return CandidateResult(score=score, usd=Decimal(0), calls=1, seconds=0.0, trail=(score,))

    async def run_all(self, planned):
        """Asks for these."""
        self.meter.asked |= {(task.id, candidate) for task, candidate in planned}
        return True

    def rank_by(self, pool):
        """Whose order counts from now on."""
        self.ranked = pool


@cache
def read_record(name):
    """Questions that every worker answered."""
    return load_recorded(name, with_texts=False).drop_incomplete()


async def tune_record(name, seed, calls):
    """The tuning's nominee beside the best single worker, on the questions of unseen families."""
    began = time.process_time()
    record = read_record(name)
    division = unseen_family_split(record, seed)
    known_q = np.concatenate([division.train, division.calibration])
    family = {task.id: kind for task, kind in zip(record.tasks, record.families, strict=True)}
    runner = RecordRunner(record)
    context = TuneContext(
        parts=split_questions([record.tasks[q] for q in known_q], lambda t: family[t.id], seed),
        family=lambda task: family[task.id],
        runner=runner,
        settings=TuneSettings(
            allowance=Allowance(calls=calls), max_steps=1, seed=seed, last=TuneStage.SELECT
        ),
        used_minutes=lambda: 0.0,
    )
    result = await run_tuning(context)
    test = [record.tasks[q] for q in division.test]
    execute = result.nominees[ULTRA].assign(test)
    credit_qm = record.credit_qm()
    best = int(credit_qm[known_q].mean(axis=0).argmax())
    for_all = result.systems[0].assign(test)
    tuned, one = (
        float(np.mean([runner.credit(task, which[task.id]) for task in test]))
        for which in (execute, for_all)
    )
    single = float(credit_qm[division.test, best].mean())
    return {
        "set": name,
        "seed": seed,
        "workers": len(record.models),
        "known": len(known_q),
        "test": len(test),
        "calls": runner.meter.calls,
        "best single": round(100 * single, 2),
        "its own best single": result.pool.ranked()[0].id == record.models[best],
        "tuned": round(100 * tuned, 2),
        "difference": round(100 * (tuned - single), 2),
        "one for all": round(100 * (one - single), 2),
        "in use": len(result.nominees[ULTRA].workflows_in_use),
        "seconds": round(time.process_time() - began, 1),
    }


def print_table(lines):
    """A row for each set."""
    print(
        "| set | workers | best single | tuned | each seed's difference | that of one for all | "
        "never below by more |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(line["set"] for line in lines):
        mine = [line for line in lines if line["set"] == name]
        single, tuned = (
            np.mean([line[what] for line in mine]) for what in ("best single", "tuned")
        )
        each, simplest = (
            ", ".join(f"{line[what]:+.1f}" for line in mine)
            for what in ("difference", "one for all")
        )
        fine = min(line["difference"] for line in mine) >= -MOST_BELOW
        held = "yes" if fine else "**no**"
        figures = f"{mine[0]['workers']} | {single:.1f} | {tuned:.1f}"
        print(f"| {name} | {figures} | {each} | {simplest} | {held} |")


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("sets", nargs="*")
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--calls", type=int, default=4000)
    said = options.parse_args()
    limit_blas_to_one_thread()
    lines = []
    for name in said.sets or RECORDED_NAMES:
        for seed in map(int, said.seeds.split(",")):
            try:
                lines.append(anyio.run(tune_record, name, seed, said.calls))
            except BatutaError as error:
                print(json.dumps({"set": name, "seed": seed, "refused": str(error)}), flush=True)
                continue
            print(json.dumps(lines[-1]), flush=True)
    print_table(lines)


if __name__ == "__main__":
    main()
