"""Every figure of RESULT.md, by `batuta eval` commands that it prints: `measure.py RUNS OUT`.

RUNS holds the run folders that run.sh fills: seed-1, seed-2, …; pools; recursion.
What is not there is left out. What OUT has already is not run again. Prints the tables.
"""
# ruff: noqa: S603 - a script that runs the project's own command and prints tables

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batuta.lab.worlds.pools import rehearsal_pool as workers

BASELINES = (
    "best-single,random,pipeline,moa,self-reflection,self-consistency@3,best-of-3,hand-written,"
    "ultra,ultra-solve-only,ultra-shuffled-access,ultra-best-worker,oracle"
)
ABLATED = "ultra,ultra-solve-only,ultra-shuffled-access,ultra-best-worker"
LIMIT = 1000
MANY = 4000
"""Questions for the difference that a wording makes: the same problems in both."""
EACH_POOL = 3500
"""Questions for the pools of three one by one: 100 for each of 35."""
STAGES = {
    "warm-up": "warmup",
    "rejection": "rejection",
    "conductor": "policy",
}
"""The folder of each stage's policy."""
BATUTA = Path(sys.executable).with_name("batuta")
Report = Mapping[str, Any]


def main() -> None:
    """Measure what is missing, then print."""
    try:
        runs, out = map(Path, sys.argv[1:])
    except ValueError:
        sys.exit(f"usage: {sys.argv[0]} RUNS OUT")
    seeds = {p.parent.name: p for p in sorted(runs.glob("seed-*/policy"))}
    if not seeds:
        sys.exit(f"there is no policy in {runs}/seed-*/policy: train one, run.sh says how")
    first = next(iter(seeds.values()))
    systems(evaluated(out / "main", first, BASELINES, "--plots"))
    stages = {
        f"{seed}, {stage}": runs / seed / folder
        for seed in seeds
        for stage, folder in STAGES.items()
    }
    print("\n| policy | right % | 95 % | steps | tokens |\n|---|---|---|---|---|")
    for name, policy in stages.items():
        trained = name.endswith("conductor")
        found = evaluated(out / name.replace(", ", "-"), policy, ABLATED if trained else "ultra")
        for system, figures in found["systems"].items():
            print(row(f"{name}, {system}", figures))
    depth({seed: report(out / f"{seed}-conductor") for seed in seeds})
    crossed({seed: out / f"{seed}-conductor" for seed in seeds})
    others(out, seeds)
    if (runs / "pools" / "rejection").is_dir():
        pools(out, {"without": first, "with": runs / "pools" / "rejection"})
    if (runs / "recursion" / "policy").is_dir():
        recursion(out, runs / "recursion" / "policy")


def others(out: Path, seeds: Mapping[str, Path]) -> None:
    """Wordings and a family that training never saw; the wordings on more questions."""
    for tasks, limit in (
        ("rehearsal", MANY),
        ("rehearsal:held-out", MANY),
        ("rehearsal:mixed", LIMIT),
    ):
        print(f"\n{tasks}, {limit} questions\n\n| policy | right % | 95 % | steps | tokens |")
        print("|---|---|---|---|---|")
        for seed, policy in seeds.items():
            name = f"{seed}-{tasks.replace(':', '-')}-{limit}"
            found = evaluated(
                out / name, policy, "best-single,ultra", "--tasks", tasks, limit=limit
            )
            print(row(seed, found["systems"]["ultra"]))
        print(row("best single worker", found["systems"]["best-single"]))


def pools(out: Path, policies: Mapping[str, Path]) -> None:
    """Three of the seven workers for each question."""
    print("\n3 of 7\n\n| random pools in training | right % | 95 % | steps | tokens |")
    print("|---|---|---|---|---|")
    for name, policy in policies.items():
        names = "best-single,pipeline,hand-written,ultra"
        found = evaluated(out / f"three-{name}", policy, names, "--pools", "3")["systems"]
        print(row(name, found.pop("ultra")))
    for name, figures in found.items():
        print(row(f"{name} of the pool", figures))
    print(row("with, whole pool", evaluated(out / "whole", policy, "ultra")["systems"]["ultra"]))
    everyone = ",".join(worker.id for worker in workers())
    for name, policy in policies.items():
        folder = out / f"each-pool-{name}"
        evaluated(folder, policy, f"{everyone},ultra", "--pools", "3", limit=EACH_POOL)
        pool_by_pool(name, folder)


def pool_by_pool(name: str, folder: Path) -> None:
    """Every pool of three beside whoever of it turned out the best on the same questions."""
    right: dict[str, dict[str, float]] = {}
    for found in lines(folder):
        right.setdefault(found["task"], {})[found["system"]] = found["score"] or 0.0
    pools: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for scores in right.values():
        pools.setdefault(tuple(sorted(scores.keys() - {"ultra"})), []).append(scores)
    print(f"\n{name}, pool by pool\n\n| pool | questions | best of it % | ultra % | more |")
    print("|---|---|---|---|---|")
    for pool, scored in sorted(pools.items()):
        means = {who: 100 * sum(s[who] for s in scored) / len(scored) for who in (*pool, "ultra")}
        own, best = means.pop("ultra"), max(means.values())
        print(f"| {', '.join(pool)} | {len(scored)} | {best:.1f} | {own:.1f} | {own - best:+.1f} |")


def recursion(out: Path, policy: Path) -> None:
    """One round and two, by difficulty; the calls are the conductor's own and its workers'."""
    evaluated(out / "recursion", policy, "ultra,ultra+recursion", limit=MANY)
    one, more = ([s for s in lines(out / "recursion") if s["system"] == name]
                 for name in ("ultra", "ultra+recursion"))  # fmt: skip
    print("\n| difficulty | questions | one round % | two % | calls | with two | corrected % |")
    print("|---|---|---|---|---|---|---|")
    for least, most in (*((level, level) for level in range(1, 7)), (1, 3), (5, 6), (1, 6)):
        first, both = (
            [s for s in some if least <= s["difficulty"] <= most] for some in (one, more)
        )
        right, calls = ([[sum(s[key] for s in some) / len(some) for some in (first, both)]
                         for key in ("score", "calls")])  # fmt: skip
        corrected = sum(s["rounds"] > 1 for s in both) / len(both)
        times = calls[1] / calls[0]
        print(
            f"| {least}-{most} | {len(both)} | {100 * right[0]:.1f} | {100 * right[1]:.1f} "
            f"| {calls[0]:.2f} | {calls[1]:.2f}, {times:.2f} x | {100 * corrected:.0f} |"
        )


def lines(folder: Path) -> list[dict[str, Any]]:
    """What an evaluation kept of each question."""
    text = (folder / "results.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def evaluated(folder: Path, policy: Path, names: str, *more: str, limit: int = LIMIT) -> Report:
    """The report of one `batuta eval`, run now or before."""
    command = [str(BATUTA), "eval", "--pool", "rehearsal", "--conductor", str(policy)]
    command += ["--limit", str(limit), "--systems", names, "--out", str(folder), *more]
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


def crossed(folders: Mapping[str, Path]) -> None:
    """Mean steps by family and difficulty, over all seeds."""
    steps: dict[tuple[str, int], list[int]] = {}
    for folder in folders.values():
        for found in lines(folder):
            if found["system"] == "ultra":
                cell = found["family"], int(found["difficulty"])
                steps.setdefault(cell, []).append(len(found["steps"]))
    levels = sorted({level for _, level in steps})
    print(f"\n| steps | {' | '.join(map(str, levels))} |\n|---|{'---|' * len(levels)}")
    for family in sorted({family for family, _ in steps}):
        means = [sum(steps[family, k]) / len(steps[family, k]) for k in levels]
        print(f"| {family} | {' | '.join(f'{mean:.2f}' for mean in means)} |")


if __name__ == "__main__":
    main()
