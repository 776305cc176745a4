"""Checkpoints of a maximum-likelihood fit, from which an interrupted stage resumes."""

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
"""Errors of reading a file that is truncated, of another kind, or for another network."""


@dataclass(slots=True, kw_only=True)
class FitCheckpoint:
    """A file that is rewritten every `every` steps and deleted when the stage has ended."""

    path: Path
    every: int
    """Steps between two checkpoints."""
    made_of: str
    """Digest of the settings and examples; a checkpoint with another digest is refused."""
    resume: bool
    """True if the fit resumes from an existing file; False if that file is deleted."""
    before: float = 0.0
    """Seconds that the fit took before it was interrupted."""
    began: float = field(default_factory=monotonic)
    """The value of `monotonic` at the start."""

    @classmethod
    def of_stage(cls, settings: TrainSettings, stage: str, source: str, *, resume: bool) -> Self:
        """Return the checkpoint of a stage in the settings' folder.

        The stage is `warmup` or `distilled`. The digest covers settings that determine the fit
        (those of the evaluation determine which questions are held out), and `source`, the digest
        of the examples (empty if they are not read from a file).
        """
        own = {"warmup"} if stage == "warmup" else {"distil", "rejection"}
        fields = {"seed", "policy", "curriculum", "pool", "prompt", "evaluation", *own}
        content = settings.model_dump_json(include=fields) + stage + source
        made_of = hashlib.sha256(content.encode()).hexdigest()
        path = settings.output / f"{stage}.checkpoint"
        return cls(path=path, every=settings.log.checkpoint_every, made_of=made_of, resume=resume)

    @property
    def seconds(self) -> float:
        """Seconds that the fit has taken, including those before an interruption."""
        return self.before + monotonic() - self.began

    def restore(self, learning: Sequence[torch.Tensor], optimiser: Any, schedule: Any) -> int:
        """Restore weights, optimiser, learning rate and random state.

        Returns:
            The number of finished steps; 0 if there is no checkpoint or `resume` is False.

        Raises:
            ConfigError: the file is damaged or belongs to another fit.
        """
        if not self.resume or not self.path.is_file():
            self.remove()
            return 0
        try:
            kept: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            if kept["made_of"] != self.made_of:
                raise ConfigError(
                    f"{self.path} belongs to other settings or examples; run without --resume "
                    "to start the stage over"
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
                f"{self.path} cannot be resumed from ({reason}); run without --resume to start "
                "the stage over"
            ) from None
        self.before = float(kept["seconds"])
        return int(kept["done"])

    def keep(
        self, done: int, learning: Sequence[torch.Tensor], optimiser: Any, schedule: Any
    ) -> None:
        """Write the file if `done`, the number of finished steps, is a multiple of `every`.

        Raises:
            StoreError: the file cannot be written.
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
        """Delete the file if it exists."""
        self.path.unlink(missing_ok=True)

    def end(self, folder: Path) -> Path:
        """Delete the checkpoint of a finished stage, and return the stage's folder."""
        self.remove()
        return folder
