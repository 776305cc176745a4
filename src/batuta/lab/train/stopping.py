"""Stops a training after a step, with a checkpoint, if a stop file appears in its folder."""

from __future__ import annotations

from typing import Any, final

import torch
from transformers import TrainerCallback

from batuta.errors import BatutaError
from batuta.lab.train.run_folder import STOP_FILE, STOPPED_FILE, RunFolder


class TrainingStoppedError(BatutaError):
    """The training was stopped on request; the message says what is kept and how to resume."""


@final
class StopFileCallback(TrainerCallback):
    """Ends the training, with a checkpoint, after the step during which the stop file appears."""

    def __init__(self, trainer: Any, folder: RunFolder) -> None:
        self._trainer = trainer
        self._folder = folder
        self._is_requested = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Delete the files of an earlier stop, so that they do not stop this training."""
        if self._trainer.accelerator.is_main_process:
            for name in (STOP_FILE, STOPPED_FILE):
                (self._folder.path / name).unlink(missing_ok=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End all processes after the same step, as each may see the file at another time."""
        accelerator = self._trainer.accelerator
        exists = torch.tensor([float((self._folder.path / STOP_FILE).exists())])
        if accelerator.reduce(exists.to(accelerator.device), reduction="sum") > 0:
            self._is_requested = control.should_save = control.should_training_stop = True

    @property
    def has_stopped(self) -> bool:
        """True if the training has ended before its last step because of the stop file."""
        return (
            self._is_requested and self._trainer.state.global_step < self._trainer.state.max_steps
        )

    def note_end(self) -> str:
        """Mark the folder as stopped; return a sentence on what is kept and how to resume."""
        accelerator, state = self._trainer.accelerator, self._trainer.state
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (self._folder.path / STOP_FILE).unlink(missing_ok=True)
            (self._folder.path / STOPPED_FILE).touch()
        return (
            f"stopped after {state.global_step} of {state.max_steps} steps, as requested: "
            f"checkpoint-{state.global_step} and the policy so far are in {self._folder.path}; "
            "continue with --resume"
        )
