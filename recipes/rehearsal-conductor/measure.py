"""Every figure of RESULT.md, by `batuta eval` commands that it prints: `measure.py RUNS OUT`.

RUNS holds the run folders that run.sh fills: seed-1, seed-2, …, each with deeper and
leaner; pools; recursion.
What is not there is left out. What OUT has already is not run again. Prints the tables.
"""
# ruff: noqa: INP001, T201, S603 - a script that runs the project's own command and prints tables

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASELINES = (
    "best-single,random,pipeline,moa,self-reflection,self-consistency@3,best-of-3,hand-written,"
    "ultra,ultra-solve-only,ultra-shuffled-access,ultra-best-worker,oracle"
)
LIMIT = 1000
STAGES = {
    "warm-up": "warmup",
    "rejection": "rejection",
    "conductor": "policy",
    "deeper": "deeper/policy",
    "leaner": "leaner/policy",
}
"""The folder of each stage's policy."""
BATUTA = Path(sys.executable).with_name("batuta")
Report = Mapping[str, Any]


def main() -> None:
    """Measure what is missing, then print."""
    runs, out = Path(sys.argv[1]), Path(sys.argv[2])
    seeds = {p.parents[1].name: p for p in sorted(runs.glob("seed-*/leaner/policy"))}
    first = next(iter(seeds.values()))
    systems(evaluated(out / "main", first, BASELINES, "--plots"))
    stages = {
        f"{seed}, {stage}": runs / seed / folder
        for seed in seeds
        for stage, folder in STAGES.items()
    }
    print("\n| policy | right % | 95 % | steps | tokens |\n|---|---|---|---|---|")
    for name, policy in stages.items():
        found = evaluated(out / name.replace(", ", "-"), policy, "ultra")
        print(row(name, found["systems"]["ultra"]))
    depth({seed: report(out / f"{seed}-leaner") for seed in seeds})
    others(out, seeds)
    if (runs / "pools" / "policy").is_dir():
        pools(out, {"without": first, "with": runs / "pools" / "policy"})
    if (runs / "recursion" / "policy").is_dir():
        recursion(out, runs / "recursion" / "policy")


def others(out: Path, seeds: Mapping[str, Path]) -> None:
    """Wordings and a family that training never saw."""
    for tasks in ("rehearsal:held-out", "rehearsal:mixed"):
        print(f"\n{tasks}\n\n| policy | right % | 95 % | steps | tokens |\n|---|---|---|---|---|")
        for seed, policy in seeds.items():
            name = f"{seed}-{tasks.partition(':')[2]}"
            found = evaluated(out / name, policy, "best-single,ultra", "--tasks", tasks)
            print(row(seed, found["systems"]["ultra"]))
        print(row("best single worker", found["systems"]["best-single"]))


def pools(out: Path, policies: Mapping[str, Path]) -> None:
    """Three of the seven workers for each question."""
    print("\n3 of 7\n\n| random pools in training | right % | 95 % | steps | tokens |")
    print("|---|---|---|---|---|")
    for name, policy in policies.items():
        found = evaluated(out / f"three-{name}", policy, "best-single,ultra", "--pools", "3")
        print(row(name, found["systems"]["ultra"]))
    print(row("best single of the pool", found["systems"]["best-single"]))
    print(row("with, whole pool", evaluated(out / "whole", policy, "ultra")["systems"]["ultra"]))


def recursion(out: Path, policy: Path) -> None:
    """One round and more, by difficulty."""
    found = evaluated(out / "recursion", policy, "ultra,ultra+recursion")["systems"]
    print(
        "\n| difficulty | one % | more % | calls | with more | rounds |\n|---|---|---|---|---|---|"
    )
    one, more = (found[name]["by_difficulty"] for name in ("ultra", "ultra+recursion"))
    for level, cell in one.items():
        again = more[level]
        print(
            f"| {level} | {100 * cell['accuracy']:.1f} | {100 * again['accuracy']:.1f} "
            f"| {cell['calls']:.2f} | {again['calls']:.2f} | {again.get('rounds', 0):.2f} |"
        )


def evaluated(folder: Path, policy: Path, names: str, *more: str) -> Report:
    """The report of one `batuta eval`, run now or before."""
    command = [str(BATUTA), "eval", "--pool", "rehearsal", "--conductor", str(policy)]
    command += ["--limit", str(LIMIT), "--systems", names, "--out", str(folder), *more]
    if not (folder / "report.json").is_file():
        print("batuta", *command[1:], file=sys.stderr)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return report(folder)


def report(folder: Path) -> Report:
    """A report that is there."""
    return json.loads((folder / "report.json").read_text("utf-8"))


def systems(found: Report) -> None:
    """The table of all systems, the best first."""
    print("| system | right % | 95 % | calls | tokens | $ a question |\n|---|---|---|---|---|---|")
    ranked = sorted(found["systems"].items(), key=lambda item: -item[1]["accuracy"])
    for name, s in ranked:
        low, high = s["ci95"]
        print(
            f"| {name} | {100 * s['accuracy']:.1f} | {100 * low:.1f}–{100 * high:.1f} "
            f"| {s['calls']:.2f} | {s['tokens']:,.0f} | {s['usd']:.6f} |"
        )


def row(name: str, s: Mapping[str, Any]) -> str:
    """One line of a table of policies."""
    low, high = s["ci95"]
    return (
        f"| {name} | {100 * s['accuracy']:.1f} | {100 * low:.1f}–{100 * high:.1f} "
        f"| {s['steps']:.2f} | {s['tokens']:,.0f} |"
    )


def depth(found: Mapping[str, Report]) -> None:
    """Mean steps by difficulty and by family."""
    cells = {name: r["systems"]["ultra"] for name, r in found.items()}
    for by in ("by_difficulty", "by_family"):
        keys = list(next(iter(cells.values()))[by])
        print(f"\n| steps, accuracy | {' | '.join(keys)} |\n|---|{'---|' * len(keys)}")
        for name, s in cells.items():
            parts = [f"{s[by][k]['steps']:.2f}, {100 * s[by][k]['accuracy']:.0f} %" for k in keys]
            print(f"| {name} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
