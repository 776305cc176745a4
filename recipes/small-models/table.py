"""The recipe's table and figure from the folders of its evaluations.

    python recipes/small-models/table.py runs/small-models --out recipes/small-models

Rows are sorted by share right; each is compared with the row of `--against` on the questions that both
were asked (McNemar's exact test). Seconds are shown where every call was made for that row: calls that
several rows share are made once, and cost no time the second time.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from batuta.lab.evals.stats import mcnemar_p_value, wilson_interval

NAMES = {
    ("chain", "ultra"): "coder > python for everything",
    ("selected", "ultra"): "what `batuta tune` found",
    ("looked-up", "ultra"): "facts > coder > python",
    ("prompted", "ultra"): "SmolLM2 prompted to conduct",
    ("small", "ultra"): "conductor of 0.6 million (rehearsal's)",
    ("pretrained", "ultra"): "pretrained conductor (world 2's)",
    ("moa", "moa-8"): "Mixture-of-Agents, 8 calls",
    ("taught", "ultra"): "SmolLM2, taught what `batuta tune` found",
    ("taught-2", "ultra"): "the same, seed 2",
    ("reinforced", "ultra"): "the same after GRPO",
    ("alone", "oracle"): "(any worker alone is right)",
    ("alone", "vote"): "vote of all",
}
ROUTED = {
    "facts": "facts",
    "odd": "facts",
    "capital-letters": "facts > coder > python",
}
"""By family; all others go to the program that is written and run."""
BY_HAND = "routed by hand, told the family"
SINGLE_PARTS = ("alone",)
"""Folders whose single workers made every call of theirs."""
Rows = dict[str, dict[str, dict[str, Any]]]


def read_rows(folder: Path) -> Rows:
    """Results by row and question."""
    rows: Rows = defaultdict(dict)
    for path in sorted(folder.glob("*/results.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            one = json.loads(line)
            part = path.parent.name
            if one["score"] is None or one["system"].startswith("calibration/"):
                continue
            name = NAMES.get((part, one["system"]), one["system"])
            rows[name][one["task"]] = one | {"part": part}
    rows[BY_HAND] = {
        task: rows[ROUTED.get(one["family"], NAMES["chain", "ultra"])][task] | {"part": "routed"}
        for task, one in rows["smol"].items()
    }
    del rows["facts > coder > python"]
    return rows


def share(results: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Per cent right with its interval."""
    right = sum(one["score"] == 1 for one in results)
    low, high = wilson_interval(right, len(results))
    return 100 * right / len(results), 100 * low, 100 * high


def compare(row: dict[str, Any], other: dict[str, Any]) -> str:
    """Points against the other row on common questions, and p."""
    common = row.keys() & other.keys()
    wins = sum(row[q]["score"] == 1 and other[q]["score"] != 1 for q in common)
    losses = sum(row[q]["score"] != 1 and other[q]["score"] == 1 for q in common)
    if not wins + losses:
        return "0"
    return f"{100 * (wins - losses) / len(common):+.1f} (p {mcnemar_p_value(wins, losses):.2g})"


def write_table(rows: Rows, against: str) -> str:
    """Markdown: all questions, then by family."""
    order = sorted(rows, key=lambda name: -share(list(rows[name].values()))[0])
    lines = [
        f"| system | n | right % | 95 % | against {against} | calls | tokens | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in order:
        own = list(rows[name].values())
        right, low, high = share(own)
        calls = sum(one["calls"] for one in own) / len(own)
        tokens = sum(one["tokens"] or 0 for one in own) / len(own)
        alone = own[0]["part"] in SINGLE_PARTS and own[0]["calls"] == 1
        seconds = f"{sum(one['seconds'] for one in own) / len(own):.1f}" if alone else "–"
        other = "–" if name == against else compare(rows[name], rows[against])
        lines.append(
            f"| {name} | {len(own)} | {right:.1f} | {low:.1f}–{high:.1f} | {other} | {calls:.2f} "
            f"| {tokens:.0f} | {seconds} |"
        )
    families = sorted({one["family"] for row in rows.values() for one in row.values()})
    lines += ["", "| right by family | " + " | ".join(families) + " |"]
    lines.append("|---" * (len(families) + 1) + "|")
    for name in order:
        cells: list[str] = []
        for family in families:
            some = [one for one in rows[name].values() if one["family"] == family]
            right = sum(one["score"] == 1 for one in some)
            cells.append(f"{right}/{len(some)}" if some else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(rows: Rows, path: Path) -> None:
    """Shares right with their intervals."""
    order = sorted(rows, key=lambda name: share(list(rows[name].values()))[0])
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(order) + 1))
    for place, name in enumerate(order):
        right, low, high = share(list(rows[name].values()))
        axes.errorbar(
            right, place, xerr=[[right - low], [high - right]], fmt="o", color="C0", capsize=3
        )
    axes.set_yticks(range(len(order)), [f"{name}, n={len(rows[name])}" for name in order])
    axes.set_xlabel("right, %, with 95 % interval")
    axes.set_xlim(0, 100)
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", default="coder > python for everything")
    wanted = parser.parse_args()
    rows = read_rows(wanted.folder)
    draw(rows, wanted.out / "right.svg")
    print(write_table(rows, wanted.against))


if __name__ == "__main__":
    main()
