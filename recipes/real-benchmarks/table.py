"""The recipe's tables, from the folders of its evaluations.

    python recipes/real-benchmarks/table.py runs/real-benchmarks

For each part one table: share right on each set, their mean with its 95 % interval, tokens, calls and dollars a
question, and each system against `--against` on the questions that both were asked (McNemar's exact test). A
question whose program, answer or call could not be judged is left out of its row; `n` says how many remain.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from math import sqrt
from pathlib import Path
from typing import Any

from batuta.lab.evals.stats import mcnemar_p_value

PARTS = ("judge", "unseen")
NAMES = {
    "program": "program-and-run (program.txt)",
    "tuned": "what `batuta tune` found",
    "prompted-1.5b": "qwen-1.5b prompted to conduct",
    "prompted-0.5b": "qwen-0.5b prompted to conduct",
    "distilled-1": "qwen-0.5b distilled, seed 1",
    "distilled-2": "qwen-0.5b distilled, seed 2",
    "reinforced-1": "the same after GRPO, seed 1",
    "reinforced-2": "the same after GRPO, seed 2",
}
"""By folder, for the system `ultra`."""
SINGLES = ("qwen-1.5b", "qwen-0.5b", "smol")
ORACLE = "(any worker alone is right)"
BEST = "best single worker for each set, by the questions learned from"
Row = dict[str, dict[str, Any]]


def read_part(folder: Path, part: str) -> dict[str, Row]:
    """Results of one part by system and question."""
    rows: dict[str, Row] = defaultdict(dict)
    for path in sorted(folder.glob(f"{part}*/results.jsonl")):
        kind = path.parent.name.removeprefix(part).removeprefix("-")
        for line in path.read_text("utf-8").splitlines():
            one = json.loads(line)
            if one["score"] is None or one["system"].startswith("calibration/"):
                continue
            name = NAMES.get(kind, kind) if one["system"] == "ultra" else one["system"]
            rows[name][one["task"]] = one
    return rows


def add_references(rows: dict[str, Row], learned: dict[str, Row]) -> None:
    """Add the oracle over single workers, and the best single worker by what was learned from."""
    alone = [rows[name] for name in SINGLES if rows.get(name)]
    common = set.intersection(*(set(row) for row in alone)) if alone else set[str]()
    rows[ORACLE] = {
        task: max((row[task] for row in alone), key=lambda one: one["score"]) for task in common
    }
    by_set: dict[str, str] = {}
    for family in {one["family"] for row in learned.values() for one in row.values()}:
        by_set[family] = max(SINGLES, key=lambda name: share(learned[name], family)[0])
    if by_set and set(by_set.values()) != {SINGLES[0]}:
        rows[BEST] = {
            task: rows[worker][task]
            for task, one in rows[SINGLES[0]].items()
            if (worker := by_set.get(one["family"], SINGLES[0])) in rows and task in rows[worker]
        }


def share(row: Row, family: str | None = None) -> tuple[float, int]:
    """Share right on a set, or on all questions, and how many there are."""
    scores = [one["score"] for one in row.values() if family in {None, one["family"]}]
    return (sum(scores) / len(scores) if scores else float("nan")), len(scores)


def mean_of_sets(row: Row, sets: list[str]) -> tuple[float, float]:
    """Mean of the shares on the sets, and half of its 95 % interval."""
    parts = [share(row, name) for name in sets if share(row, name)[1]]
    variance = sum(p * (1 - p) / n for p, n in parts) / len(parts) ** 2
    return sum(p for p, _ in parts) / len(parts), 1.96 * sqrt(variance)


def compare(row: Row, other: Row) -> str:
    """Questions won and lost against the other row, and p."""
    common = row.keys() & other.keys()
    won = sum(row[q]["score"] > other[q]["score"] for q in common)
    lost = sum(row[q]["score"] < other[q]["score"] for q in common)
    p = mcnemar_p_value(won, lost) if won + lost else 1.0
    return f"{won} : {lost} (p {p:.2g})"


def mean(row: Row, field: str) -> float:
    """Mean of what is known of a figure."""
    known = [float(one[field]) for one in row.values() if one[field] is not None]
    return sum(known) / len(known) if known else float("nan")


def write_table(rows: dict[str, Row], against: str) -> str:
    """Markdown, the highest mean first."""
    sets = sorted({one["family"] for row in rows.values() for one in row.values()})
    order = sorted((n for n in rows if rows[n]), key=lambda n: -mean_of_sets(rows[n], sets)[0])
    lines = [
        f"| system | n | mean of sets | {' | '.join(sets)} | tokens | calls | $ for 1,000 | won : lost |",
        "|---" * (len(sets) + 7) + "|",
    ]
    for name in order:
        row = rows[name]
        middle, half = mean_of_sets(row, sets)
        cells = [f"{100 * share(row, one)[0]:.1f}" if share(row, one)[1] else "–" for one in sets]
        ideal = name == ORACLE
        cost = ["–"] * 3 if ideal else [
            f"{mean(row, 'tokens'):.0f}", f"{mean(row, 'calls'):.2f}", f"{1000 * mean(row, 'usd'):.4f}"
        ]  # fmt: skip
        other = "–" if name == against or against not in rows else compare(row, rows[against])
        lines.append(
            f"| {name} | {len(row)} | {100 * middle:.1f} ± {100 * half:.1f} | {' | '.join(cells)} "
            f"| {' | '.join(cost)} | {other} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", default="qwen-1.5b")
    wanted = parser.parse_args()
    learned = read_part(wanted.folder, "learn")
    for part in PARTS:
        rows = read_part(wanted.folder, part)
        if not rows:
            continue
        add_references(rows, learned)
        print(f"## {part}\n\n{write_table(rows, wanted.against)}")


if __name__ == "__main__":
    main()
