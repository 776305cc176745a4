"""The file of fitted probabilities that `[confidence]` names."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from batuta.config.settings_file import StrictModel
from batuta.core import WorkerId
from batuta.engine.confidence import SIGNALS, Calibration, ConfidenceModel
from batuta.errors import ConfigError

_MAX_BYTES = 1 << 22


class MeasuredConfidence(StrictModel):
    """How good the probabilities were on runs that they were not fitted to."""

    runs: int
    right: float
    """The share of right answers."""
    calibration_error: float
    """The expected difference between a probability and the share right, over ten bins."""
    brier: float
    auroc: float | None = None
    """The chance that a right answer has the higher probability of a right and a wrong one."""
    right_at_80: float
    """The share of right answers among the surest 80 % of all."""


class StoredCalibration(StrictModel):
    """It holds what was fitted for one conductor, as the file has it."""

    weights: dict[str, float]
    workers: dict[str, float]
    runs: int = Field(ge=1)
    curve: tuple[tuple[float, float], ...] = ()
    measured: MeasuredConfidence


class ConfidenceFile(StrictModel):
    """The whole file."""

    format: int = Field(default=1, ge=1, le=1)
    conductors: dict[str, StoredCalibration]


def read_confidence(path: Path) -> ConfidenceModel:
    """Read the file.

    Raises:
        ConfigError: it is not there, or not of `batuta tune` or `batuta eval --calibrate`.
    """
    try:
        body = path.read_bytes()[:_MAX_BYTES]
        stored = ConfidenceFile.model_validate_json(body)
    except OSError as error:
        raise ConfigError(f"confidence.file: {path} cannot be read: {error.strerror}") from None
    except ValidationError:
        need = "write it with batuta tune or batuta eval --calibrate"
        raise ConfigError(f"confidence.file: {path} has no fitted probabilities; {need}") from None
    for name, one in stored.conductors.items():
        if strange := sorted(set(one.weights) - set(SIGNALS)):
            why = f"weighs {strange[0]!r} for {name}, which this Batuta does not know; fit it anew"
            raise ConfigError(f"confidence.file: {path} {why}")
    return ConfidenceModel(
        conductors={
            name: Calibration(
                weights=one.weights,
                workers={WorkerId(worker): share for worker, share in one.workers.items()},
                runs=one.runs,
                curve=tuple(sorted(one.curve)),
            )
            for name, one in stored.conductors.items()
        }
    )
