"""Fits the policy to what the rules chose: whole drafts, and beside them cheap lines that teach to rank.

    .venv/bin/python recipes/pretrained-conductor/drills.py runs/drafts.jsonl --minutes 55

From whole drafts alone a small model learns to copy the cards and not to compare what it has copied. Ranking needs
no prompt: a drill is the line of a draft's thought with three random names and shares, a dozen to a text, and the
loss is on the names that follow its semicolons. Each step has some whole drafts, every one seen once, and some texts of
drills. Begins with the stage that `--start` names; what comes out is a folder named by `--stage`, its losses a file of that name.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import torch
from rules import read_aloud
from torch.nn import functional

from batuta.config.settings_file import read_settings
from batuta.rehearsal.world2 import TRAINING_KINDS
from batuta.train.allocator import MemoryTrimmer, retain_freed_memory
from batuta.train.conductor_training import load_pool
from batuta.train.distil_sources import read_drafts
from batuta.train.model import cpu_autocast, load_policy, save_stage, set_threads
from batuta.train.run_folder import RunFolder
from batuta.train.settings import TrainSettings
from batuta.train.warmup import TrainingExample

CONFIG = Path(__file__).with_name("conductor.toml")
LINES, TEXTS, DRAFTS, TOGETHER = 12, 2, 8, 4
"""Lines of a text of drills; such texts, and whole drafts, of a step; drafts that are read at once."""
RATE, RISE = 3e-4, 0.04
"""The learning rate at its highest; the share of the time in which it rises, to fall to 0 then."""
WEIGHT = 0.5
"""Of the drills' mean loss beside the drafts'."""
ALIKE = 0.3
"""How often two shares of a drill are near each other: what is hard to rank is rare by chance."""
Weighted = tuple[list[int], list[int]]
"""Token ids, and for each whether it is learned."""


def draw_shares(rng: Random) -> list[int]:
    """Three shares of thirty questions, as the cards count, in percent."""
    shares = [rng.randrange(31) for _ in range(3)]
    if rng.random() < ALIKE:
        shares[1] = min(30, max(0, shares[0] + rng.choice((-3, -2, -1, 1, 2, 3))))
        rng.shuffle(shares)
    return [round(100 * share / 30) for share in shares]


def draw_name(rng: Random) -> str:
    """Two syllables by chance, as workers are called."""
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2))


def rename_workers(one: TrainingExample, rng: Random) -> TrainingExample:
    """The same with other names: three hundred names can be learned by heart, and then others are misspelt."""
    found = re.search(r"^Models: (\[.*?\])$", one.prompt, re.MULTILINE)
    if not found:
        return one
    renamed: dict[str, str] = {}
    for name in json.loads(found[1]):
        new = draw_name(rng)
        while new in renamed.values() or new in one.prompt:
            new = draw_name(rng)
        renamed[name] = new
    old = re.compile(rf"\b(?:{'|'.join(map(re.escape, renamed))})\b")
    texts = [old.sub(lambda at: renamed[at[0]], text) for text in (one.prompt, one.draft)]
    return one._replace(prompt=texts[0], draft=texts[1])


def draw_line(rng: Random) -> list[tuple[str, int]]:
    """A line of a thought in pieces, each with 1 where it is learned: who is first."""
    names = [draw_name(rng) for _ in range(3)]
    pieces: list[tuple[str, int]] = []
    for of_what, ranked in ((rng.choice(TRAINING_KINDS), 2), (" plans", 1)):
        shares = draw_shares(rng)
        order = sorted(range(3), key=lambda at, known=shares: -known[at])
        told = [(name, str(share)) for name, share in zip(names, shares, strict=True)]
        said = read_aloud(of_what, told, [names[at] for at in order[:ranked]])
        given, _, follows = said.partition(";")
        pieces += [(f"{given};", 0), (follows, 1)]
    return [*pieces, ("\n", 0)]


def make_drills(tokenizer: Any, rng: Random) -> Weighted:
    """A text of drills."""
    ids: list[int] = []
    learned: list[int] = []
    for _ in range(LINES):
        for text, counts in draw_line(rng):
            more = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += more
            learned += [counts] * len(more)
    return ids, learned


def read_whole(
    source: Path, settings: TrainSettings, tokenizer: Any, rng: Random, *, rename: bool
) -> Iterator[Weighted]:
    """Drafts with their prompts, in a random order; when all were seen, again."""
    groups = read_drafts(source, anyio.run(load_pool, settings), settings, tokenizer)
    while True:
        for (read,) in rng.sample(groups, len(groups)):
            one = rename_workers(read, rng) if rename else read
            asked = tokenizer(one.prompt, add_special_tokens=False)["input_ids"]
            draft = tokenizer(f"{one.draft}{tokenizer.eos_token}", add_special_tokens=False)
            written = draft["input_ids"]
            yield asked + written, [0] * len(asked) + [1] * len(written)


def compile_layers(model: Any) -> None:
    """A third faster, where there is a C++ compiler: 388 tokens a CPU second become 533 (AMX)."""
    if shutil.which("c++"):
        for layer in model.get_decoder().layers:
            layer.compile(dynamic=True)


def add_gradients(model: Any, rows: Sequence[Weighted], pad: int, weight: float) -> float:
    """The gradients of the learned tokens' mean loss times the weight; returns the loss."""
    longest = max(len(row) for row, _ in rows)
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row, _ in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in rows])
    learned = torch.tensor([w + [0] * (longest - len(w)) for _, w in rows])[:, 1:].bool()
    decoder = model.get_decoder()
    hidden = decoder(ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
    logits = model.get_output_embeddings()(hidden[learned]).float()
    loss = functional.cross_entropy(logits, ids[:, 1:][learned])
    (weight * loss).backward()
    return float(loss.detach())


def fit_policy(
    model: Any,
    tokenizer: Any,
    whole: Iterator[Weighted],
    settings: TrainSettings,
    *,
    minutes: float,
    rate: float,
    stage: str,
) -> None:
    """Steps until the minutes are over; the rate falls with them."""
    learning = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, rate, weight_decay=0.01, fused=True)
    rng, log = Random(f"{stage} {settings.seed}"), RunFolder(settings.output).log_losses(stage)
    began, pad, step = time.monotonic(), int(tokenizer.pad_token_id), 0
    memory = MemoryTrimmer()
    model.train()
    while (over := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate * min((over + 1e-3) / RISE, (1 - over) / (1 - RISE))
        optimiser.zero_grad(set_to_none=True)
        drills = [make_drills(tokenizer, rng) for _ in range(TEXTS)]
        drafts = sorted((next(whole) for _ in range(DRAFTS)), key=lambda row: len(row[0]))
        parts = [drafts[at : at + TOGETHER] for at in range(0, DRAFTS, TOGETHER)]
        with cpu_autocast(settings):
            ranked = add_gradients(model, drills, pad, WEIGHT)
            losses = [add_gradients(model, part, pad, 1 / len(parts)) for part in parts]
        drafted = sum(losses) / len(losses)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        log(step, drafted)
        step += 1
        memory.trim_growth()
        print(
            f"step {step}, {over:.0%} of the time, loss {drafted:.3f}, drills {ranked:.3f}",
            flush=True,
        )
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", type=Path, help="what rules.py wrote")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--start", default="warmup", help="the stage that it begins with")
    parser.add_argument("--stage", default="drilled", help="what comes out")
    parser.add_argument("--rename", action="store_true", help="the workers of every draft")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--config", type=Path, default=CONFIG)
    wanted = parser.parse_args()
    settings = read_settings(wanted.config, TrainSettings)
    retain_freed_memory()
    torch.manual_seed(settings.seed)
    set_threads(settings)
    model, tokenizer = load_policy(str(settings.output / wanted.start), None)
    rng = Random(f"drafts {settings.seed}{wanted.start.removeprefix('warmup')}")
    whole = read_whole(wanted.drafts, settings, tokenizer, rng, rename=wanted.rename)
    compile_layers(model)
    fit_policy(
        model,
        tokenizer,
        whole,
        settings,
        minutes=wanted.minutes,
        rate=wanted.rate,
        stage=wanted.stage,
    )
    print(save_stage(model, tokenizer, settings, wanted.stage))


if __name__ == "__main__":
    main()
