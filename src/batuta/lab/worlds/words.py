"""The words of world 1: its things, the wordings of its steps and questions, and its workers.

`world1.toml` has the words; the other modules compute what they mean.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("world1.toml").read_text(encoding="utf-8")
)
