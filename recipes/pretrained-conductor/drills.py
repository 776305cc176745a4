"""Teaches the distilled policy to rank what it has copied from the cards: cheap lines beside whole drafts.

    .venv/bin/python recipes/pretrained-conductor/drills.py runs/drafts.jsonl --minutes 12

After distilling, drafts copy the right family's shares and then rank them by chance. Ranking needs no
prompt: a drill is a line of a draft's thought with three random names and shares, a dozen to a text, and the
loss is on what follows its semicolon. Each batch holds some texts of drills and some whole drafts. What was in `distilled/` becomes `drilled/`; losses are in `drilled.jsonl`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import torch
from torch.nn import functional

from batuta.config.settings_file import read_settings
from batuta.rehearsal.world2 import TRAINING_KINDS
from batuta.train.allocator import retain_freed_memory
from batuta.train.conductor_training import load_pool
from batuta.train.distil_sources import read_drafts
from batuta.train.model import (
    choose_attention,
    cpu_autocast,
    freeze_lower_layers,
    load_policy,
    save_stage,
    set_threads,
)
from batuta.train.run_folder import RunFolder
from batuta.train.settings import TrainSettings

CONFIG = Path(__file__).with_name("conductor.toml")
LINES, TEXTS, DRAFTS = 12, 3, 2
"""Lines of a text of drills; such texts, and whole drafts, of a batch."""
STEPS, RATE, RISE = 400, 3e-4, 0.08
Weighted = tuple[list[int], list[int]]
"""Token ids, and for each whether it is learned."""


def draw_line(rng: Random) -> tuple[str, str]:
    """What is given, and what is to follow."""
    names = [
        "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in "12") for _ in "123"
    ]
    shares = rng.sample(range(31), 3)  # of thirty questions, as the cards count
    told = ", ".join(f"{n} {share / 30:.0%}" for n, share in zip(names, shares, strict=True))
    ranked = [name for _, name in sorted(zip(shares, names, strict=True), reverse=True)]
    return f"{rng.choice(TRAINING_KINDS)}: {told};", f" {', '.join(ranked)}\n"


def make_drills(tokenizer: Any, rng: Random) -> Weighted:
    """A text of drills."""
    ids: list[int] = []
    learned: list[int] = []
    for _ in range(LINES):
        for text, counts in zip(draw_line(rng), (0, 1), strict=True):
            more = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += more
            learned += [counts] * len(more)
    return ids, learned


def read_whole(
    source: Path, told: TrainSettings, tokenizer: Any, rng: Random
) -> Iterator[Weighted]:
    """Drafts with their prompts, in a random order."""
    groups = read_drafts(source, anyio.run(load_pool, told), told, tokenizer)
    for (one,) in rng.sample(groups, len(groups)):
        asked = tokenizer(one.prompt, add_special_tokens=False)["input_ids"]
        draft = tokenizer(f"{one.draft}{tokenizer.eos_token}", add_special_tokens=False)[
            "input_ids"
        ]
        yield asked + draft, [0] * len(asked) + [1] * len(draft)


def add_gradients(model: Any, rows: Sequence[Weighted], pad: int) -> float:
    """The gradients of the learned tokens' mean loss, which is returned."""
    longest = max(len(row) for row, _ in rows)
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in rows])
    learned = torch.tensor([w + [0] * (longest - len(w)) for _, w in rows])[:, 1:].bool()
    hidden = model.get_decoder()(ids, attention_mask=mask).last_hidden_state[:, :-1]
    logits = model.get_output_embeddings()(hidden[learned]).float()
    loss = functional.cross_entropy(logits, ids[:, 1:][learned])
    loss.backward()
    return float(loss.detach())


def fit(
    model: Any, tokenizer: Any, whole: Iterator[Weighted], told: TrainSettings, minutes: float
) -> None:
    """Batches until the minutes are over; the rate falls with them."""
    learning = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, RATE, weight_decay=0.01, fused=True)
    rng, log = Random(f"drills {told.seed}"), RunFolder(told.output).log_losses("drilled")
    began, pad = time.monotonic(), int(tokenizer.pad_token_id)
    model.train()
    for step in range(STEPS):
        over = (time.monotonic() - began) / (60 * minutes)
        if over >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = RATE * min((step + 1) / (STEPS * RISE / 4), 1 - over)
        optimiser.zero_grad(set_to_none=True)
        drills = [make_drills(tokenizer, rng) for _ in range(TEXTS)]
        drafts = [next(whole) for _ in range(DRAFTS)]
        with cpu_autocast(told):
            loss = add_gradients(model, [*drills, *drafts], pad)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        log(step, loss)
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", type=Path, help="what rules.py wrote")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument(
        "--skip", type=int, default=520, help="drafts that distilling may have seen"
    )
    wanted = parser.parse_args()
    told = read_settings(CONFIG, TrainSettings)
    retain_freed_memory()
    torch.manual_seed(told.seed)
    set_threads(told)
    model, tokenizer = load_policy(str(told.output / "distilled"), None)
    choose_attention(model, told)
    freeze_lower_layers(model, told.policy.upper_layers)
    whole = read_whole(wanted.drafts, told, tokenizer, Random("whole drafts"))
    fit(model, tokenizer, whole, told, wanted.minutes)
    print(save_stage(model, tokenizer, told, "drilled"))


if __name__ == "__main__":
    main()
