"""A pool on loopback: one fake provider whose models are the rehearsal's names, and what it was asked."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from fakes import FakeOpenAI
from fakes.server import KEY

NAMES = ("flute", "oboe", "cello", "harp", "piano", "tuba", "viola")
HELD = 3600.0
_SUM = re.compile(r"What is (\d+) plus (\d+)\?")


class Provider(FakeOpenAI):
    """Adds rightly or by one too much, depending on model and question; counts what it answered."""

    def __init__(self, held_after: int | None = None) -> None:
        super().__init__(self._say, strict_openai=False)
        self.answered: Counter[str] = Counter()
        self._held_after = held_after

    def _say(self, body: dict[str, Any]) -> str:
        self.answered[json.dumps(body, sort_keys=True)] += 1
        if self.answered.total() == self._held_after:
            self.latency = HELD
        found = _SUM.search(str(body["messages"]))
        assert found is not None
        one, two = int(found[1]), int(found[2])
        knows = (NAMES.index(body["model"]) + one) % 2 == 0
        return f"I add.\nAnswer: {one + two + (not knows)}"

    @property
    def held(self) -> int:
        """Requests that wait for an answer that does not come."""
        return len(self.requests) - self.answered.total()


def pool_file(folder: Path, url: str) -> Path:
    """A pool of seven models behind one address."""
    path = folder / "pool.toml"
    workers = [
        f'[[workers]]\nid = "{name}"\nprovider = "compatible"\nbase_url = "{url}"\nmodel = "{name}"\n'
        'key_env = "LOOPBACK_KEY"\nprice = { input = 1, output = 2 }\n'
        for name in NAMES
    ]
    path.write_text("\n".join(workers), encoding="utf-8")
    return path


def questions_file(folder: Path, count: int = 40) -> Path:
    """Sums."""
    path = folder / "questions.jsonl"
    rows = [
        {"question": f"What is {n} plus {n * 7 % 23}?", "answer": n + n * 7 % 23}
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


ENVIRONMENT = {"LOOPBACK_KEY": KEY}
