"""Draws the losses of the SFT stages, and the reward of GRPO, from a training's folder.

.venv/bin/python recipes/pretrained-conductor/curves.py runs/pretrained OUT.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

STAGES = {
    "warmup.jsonl": ("SFT on random workflows", "loss", "nats a token"),
    "distilled.jsonl": ("SFT on drafts and drills", "loss", "nats a token"),
    "metrics.jsonl": ("GRPO", "reward", "mean of a step's drafts"),
}
"""Files of the folder: what they are of, the figure, and its unit; a file that is not there is left out."""


def read_stage(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def draw(folder: Path, out: Path) -> None:
    found = {name: read_stage(folder / name) for name in STAGES if (folder / name).is_file()}
    mpl.rcParams["svg.hashsalt"] = "batuta"
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3), squeeze=False)
    for axis, (name, lines) in zip(axes[0], found.items(), strict=True):
        title, figure_name, unit = STAGES[name]
        for each in (figure_name, "drills", "valid"):
            some = [line for line in lines if each in line]
            if some:
                label = "drafts" if each == "loss" else each
                axis.plot(
                    [line["step"] for line in some], [line[each] for line in some], label=label
                )
        if len(axis.lines) > 1:
            axis.legend()
        axis.set(title=title, xlabel="step", ylabel=unit, ylim=(0, None))
        axis.title.set_fontsize(9)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    wanted = parser.parse_args()
    draw(wanted.folder, wanted.out)


if __name__ == "__main__":
    main()
