"""The calls that a search and what followed it have paid, and the depth of the policy by difficulty.

    python recipes/search-then-distil/count.py SEED

Reads the folders that run.sh fills. A workflow of reinforcement counts with all its steps, also
those that were asked before: so does the recipe that it is compared with.
"""

import json
import sys
import tomllib
from pathlib import Path

HERE, RUNS = Path(__file__).parent, Path("runs/search-then-distil")


def read_lines(path):
    """The lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main():
    """Prints the counts and a table."""
    seed = sys.argv[1]
    settings = tomllib.loads((HERE / "conductor.toml").read_text("utf-8"))["optimiser"]
    searched = json.loads((RUNS / f"tuned-{seed}/report.json").read_text("utf-8"))["spent"]["calls"]
    metrics = read_lines(RUNS / f"seed-{seed}/metrics.jsonl")
    each = settings["questions"] * settings["group"]
    learned = sum(each * line["steps"] * line["valid"] for line in metrics if "steps" in line)
    print(f"calls of workers: {searched:,} of the search, {learned:,.0f} of reinforcement, "
          f"{searched + learned:,.0f} together")  # fmt: skip
    print("\n| policy | right % | calls of workers | " + " | ".join("123456") + " |")
    print("|---|---|---|" + "---|" * 6)
    for stage in ("distilled", "policy"):
        found = read_lines(RUNS / f"measured-{seed}-{stage}/results.jsonl")
        ultra = [one for one in found if one["system"] == "ultra"]
        right = 100 * sum(one["score"] or 0.0 for one in ultra) / len(ultra)
        steps = sum(len(one["steps"]) for one in ultra) / len(ultra)
        parts = []
        for level in range(1, 7):
            there = [one for one in ultra if int(one["difficulty"]) == level]
            mean = sum(len(one["steps"]) for one in there) / len(there)
            share = 100 * sum(one["score"] or 0.0 for one in there) / len(there)
            parts.append(f"{mean:.2f}, {share:.0f} %")
        print(f"| {stage} | {right:.1f} | {steps:.2f} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
