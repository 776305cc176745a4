"""Tuning on recorded answers of real models, measured on whole families that were never asked.

    BATUTA_DATA=... python recipes/tune/records.py --seeds 0,1,2,3,4 [SET ...]

What `batuta tune --tasks recorded:SET` does, with the questions of `unseen_family_split`: it learns
from training and calibration, and its nominee is measured on the test. No model is called. The best
single worker is chosen by the first answers to all questions that the tuning may ask. One line of
JSON for each set and seed, then the table. Without a set: all that are in the data folder. Options
are tried on families that are left out in turn; `--all` also measures those that were not
nominated.
"""

import argparse
import json
import time
from functools import cache

import numpy as np

from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.errors import BatutaError
from batuta.lab.learners.history import history_from_record
from batuta.lab.tasks.recorded import load_recorded, unseen_family_split
from batuta.lab.tasks.recorded.catalog import RECORDED_NAMES
from batuta.lab.tune.record_options import RecordSettings, fit_options
from batuta.lab.tune.record_tuning import nominate_options

MOST_BELOW = 0.3
"""Points below the best single worker that are allowed."""


@cache
def read_record(name):
    """Questions that every worker answered."""
    return load_recorded(name, with_texts=False).drop_incomplete()


def tune_record(name, seed, call_weight, measures_all):
    """The tuning's nominee beside the best single worker, on the questions of unseen families."""
    began = time.process_time()
    record = read_record(name)
    division = unseen_family_split(record, seed)
    known = np.concatenate([division.train, division.calibration])
    settings = RecordSettings(call_weight=call_weight, seed=seed)
    nominees = nominate_options(record, known, settings)
    credit_qm = record.credit_qm()
    best = int(credit_qm[known].mean(axis=0).argmax())
    single = float(credit_qm[division.test, best].mean())
    test = history_from_record(record, division.test)
    tuned = nominees.fitted[nominees.ultra](test)
    line = {
        "set": name,
        "seed": seed,
        "workers": len(record.models),
        "known": len(known),
        "families": nominees.families,
        "test": len(division.test),
        "nominee": nominees.ultra,
        "its own best single": nominees.best == record.models[best],
        "best single": round(100 * single, 2),
        "tuned": round(100 * float(tuned.earned_n.mean()), 2),
        "calls": round(float(tuned.calls_n.mean()), 2),
        "difference": round(100 * (float(tuned.earned_n.mean()) - single), 2) + 0.0,
        "trials": {
            one.name: {
                key: round(100 * getattr(one, key), 2)
                for key in ("gain", "merit", "low", "foreseen")
            }
            for one in nominees.trials
        },
    }
    if measures_all and nominees.trials:
        names = [one.name for one in nominees.trials]
        options = fit_options(names, history_from_record(record, known), settings)
        line["options"] = {
            option: round(100 * (float(options[option](test).earned_n.mean()) - single), 2)
            for option in names
        }
    return line | {"seconds": round(time.process_time() - began, 1)}


def print_table(lines):
    """A row for each set."""
    print(
        "| set | workers | families known | best single | tuned | calls | nominated | "
        "each seed's difference | worst | never below by more |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(line["set"] for line in lines):
        mine = [line for line in lines if line["set"] == name]
        single, tuned, calls = (
            np.mean([line[what] for line in mine]) for what in ("best single", "tuned", "calls")
        )
        families = sorted({line["families"] for line in mine})
        spread = f"{families[0]}–{families[-1]}" if len(families) > 1 else str(families[0])
        each = ", ".join(f"{line['difference']:+.1f}" for line in mine)
        worst = min(line["difference"] for line in mine)
        who = ", ".join(
            f"{option} ({sum(line['nominee'] == option for line in mine)})"
            for option in dict.fromkeys(line["nominee"] for line in mine)
        )
        held = "yes" if worst >= -MOST_BELOW else "**no**"
        print(
            f"| {name} | {mine[0]['workers']} | {spread} | {single:.1f} | {tuned:.1f} "
            f"| {calls:.2f} | {who} | {each} | {worst:+.2f} | {held} |"
        )


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("sets", nargs="*")
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--call-weight", type=float, default=0.005)
    options.add_argument("--all", action="store_true")
    said = options.parse_args()
    limit_blas_to_one_thread()
    lines = []
    for name in said.sets or RECORDED_NAMES:
        for seed in map(int, said.seeds.split(",")):
            try:
                lines.append(tune_record(name, seed, said.call_weight, said.all))
            except BatutaError as error:
                print(json.dumps({"set": name, "seed": seed, "refused": str(error)}), flush=True)
                continue
            print(json.dumps(lines[-1]), flush=True)
    print_table(lines)


if __name__ == "__main__":
    main()
