"""Checks that a trainer's checkpoint is complete, as a crash may leave part of one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from batuta.errors import ConfigError, StoreError
from batuta.lab.train.fit_checkpoint import DAMAGE

STATE_FILE = "trainer_state.json"
_WRITTEN_BY_DEEPSPEED = "global_step*"
"""DeepSpeed's folder, which has both the weights and the optimiser state."""
RESUMING = "--resume continues from the last complete checkpoint"
"""How to continue a training whose checkpoint or policy could not be written."""
_PARTS = (
    ("model", "*model*"),
    ("optimiser", "optimizer*"),
    ("schedule", "scheduler*"),  # without it, transformers does not load the optimiser
    ("random state", "rng_state*"),
)
"""The parts of a checkpoint, and the names of their files or folders."""


def checkpoint_damage(path: Path) -> str | None:
    """Return a phrase that says what is wrong with the checkpoint in that folder, or None.

    PyTorch's files have a checksum for every tensor; of a safetensors file only the length can be
    checked.
    """
    return next(_find_damage(path), None)


@contextmanager
def refuse_unusable_checkpoint(checkpoint: str | None) -> Iterator[None]:
    """Raise an error that says what to do if the block cannot load the checkpoint.

    Raises:
        ConfigError: the checkpoint belongs to another model or other settings, or is damaged.
    """
    try:
        yield
    except (*DAMAGE, SafetensorError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise ConfigError(
            f"{checkpoint} cannot be resumed from ({reason}): it may belong to another model or "
            "other settings; choose another with --checkpoint, or start over without --resume"
        ) from None


@contextmanager
def report_unsaved(folder: object, then: str = "run the command again") -> Iterator[None]:
    """Raise StoreError if the block cannot write a model or a checkpoint into the folder.

    `then` says how to continue once there is disk space.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's writer raises RuntimeError
        reason = str(error).partition("\n")[0][:120]
        raise StoreError(
            f"{folder} cannot be written ({reason}): free disk space; {then}"
        ) from error


def _find_damage(path: Path) -> Iterator[str]:
    if not _is_state(path):  # the state is written last
        yield f"{STATE_FILE} is missing or damaged, or of another step"
    if not any(path.glob(_WRITTEN_BY_DEEPSPEED)):
        for part, pattern in _PARTS:
            if not any(path.glob(pattern)):
                yield f"its {part} is missing"
    for file in sorted(path.rglob("*")):
        is_whole = _CHECKS.get(file.name) or _CHECKS.get(file.suffix)
        if is_whole is not None and not is_whole(file):
            yield f"{file.name} is damaged"


def _is_state(path: Path) -> bool:
    """Return whether the trainer's state exists and names the same step as the folder."""
    try:
        step = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return str(step) == path.name.rpartition("-")[2]


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _is_torch_archive(file: Path) -> bool:
    """Return whether the checksum of every entry of the archive is correct."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, EOFError):
        return False  # a flipped bit in a header can look like an unsupported compression


def _is_safetensors(file: Path) -> bool:
    """Return whether the file is as long as its header says."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            size = file.stat().st_size
            if not 0 < length <= size - 8:
                return False
            header = json.loads(opened.read(length))
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        return bool(ends) and size == 8 + length + max(ends)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


_CHECKS: Mapping[str, Callable[[Path], bool]] = {
    "config.json": _is_json,
    "adapter_config.json": _is_json,
    ".safetensors": _is_safetensors,
    ".pt": _is_torch_archive,
    ".pth": _is_torch_archive,
    ".bin": _is_torch_archive,
}
"""Checks by file name or ending, for the files that are read when a training resumes."""
