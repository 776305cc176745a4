"""Where a fit by likelihood goes on after it was killed: weights, optimiser, how far it came."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

import torch

from batuta.errors import ConfigError, StoreError
from batuta.lab.train.settings import TrainSettings

DAMAGE = (OSError, RuntimeError, TypeError, ValueError, LookupError, EOFError, pickle.PickleError)
"""What reading a file raises that is cut off, something else, or of another network."""


@dataclass(slots=True, kw_only=True)
class FitCheckpoint:
    """One file, written anew every so many steps and forgotten when the stage has ended."""

    path: Path
    every: int
    """Steps from one writing to the next."""
    made_of: str
    """What is fitted to what: a checkpoint of something else is refused."""
    resume: bool
    """Whether a file that is there is gone on from; else it is written over."""
    before: float = 0.0
    """Seconds that the fit took before it was killed."""
    began: float = field(default_factory=monotonic)

    @classmethod
    def of_stage(cls, settings: TrainSettings, stage: str, source: str, *, resume: bool) -> Self:
        """The checkpoint of a stage in the settings' folder.

        Args:
            settings: every one that decides what is learned is part of what it is made of.
            stage: `warmup` or `distilled`.
            source: digest of the examples, where they are a file.
            resume: whether to go on from what is there.
        """
        own = {"warmup"} if stage == "warmup" else {"distil", "rejection"}
        decides = {"seed", "policy", "curriculum", "pool", "prompt", *own}
        said = settings.model_dump_json(include=decides) + stage + source
        made_of = hashlib.sha256(said.encode()).hexdigest()
        path = settings.output / f"{stage}.checkpoint"
        return cls(path=path, every=settings.log.checkpoint_every, made_of=made_of, resume=resume)

    @property
    def seconds(self) -> float:
        """How long the fit has taken, what was before it was killed included."""
        return self.before + monotonic() - self.began

    def restore(self, learning: Sequence[torch.Tensor], optimiser: Any, schedule: Any) -> int:
        """Put everything as it was at the last writing.

        Returns:
            The steps done; 0: there is nothing to go on from.

        Raises:
            ConfigError: the file is damaged, or of another fit.
        """
        if not self.resume or not self.path.is_file():
            self.remove()
            return 0
        try:
            kept: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            if kept["made_of"] != self.made_of:
                raise ConfigError(
                    f"{self.path} is of other settings or other examples; without --resume the "
                    "stage begins anew"
                )
            with torch.no_grad():
                for one, was in zip(learning, kept["weights"], strict=True):
                    one.copy_(was)
            optimiser.load_state_dict(kept["optimiser"])
            schedule.load_state_dict(kept["schedule"])
            torch.set_rng_state(kept["chance"])
        except DAMAGE as error:
            reason = str(error).partition("\n")[0][:120]
            raise ConfigError(
                f"{self.path} cannot be gone on from ({reason}); without --resume the stage begins "
                "anew"
            ) from None
        self.before = float(kept["seconds"])
        return int(kept["done"])

    def keep(
        self, done: int, learning: Sequence[torch.Tensor], optimiser: Any, schedule: Any
    ) -> None:
        """Write the file, where so many steps are done that it is time.

        Raises:
            StoreError: the disk is full.
        """
        if done % self.every:
            return
        state = {
            "made_of": self.made_of,
            "done": done,
            "seconds": self.seconds,
            "weights": [one.detach() for one in learning],
            "optimiser": optimiser.state_dict(),
            "schedule": schedule.state_dict(),
            "chance": torch.get_rng_state(),
        }
        part = self.path.with_suffix(".part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, part)
            part.replace(self.path)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:120]
            raise StoreError(f"the checkpoint {self.path} cannot be written: {reason}") from None

    def remove(self) -> None:
        """Forget it: the stage has ended, or begins anew."""
        self.path.unlink(missing_ok=True)

    def end(self, folder: Path) -> Path:
        """The stage is written to that folder: the checkpoint is not needed any more."""
        self.remove()
        return folder
