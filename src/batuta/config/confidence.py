"""The file of fitted confidence models that `[confidence]` names."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from batuta.config.settings_file import StrictModel
from batuta.config.trust_settings import ConfidenceSetting
from batuta.core import Pool, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.engine.confidence import (
    SAMPLES,
    SIGNALS,
    Calibration,
    ConfidenceModel,
    SampleSetting,
)
from batuta.errors import ConfigError

_MAX_BYTES = 1 << 22
"""Maximum size of the file in bytes; a larger one cannot be used."""


class MeasuredConfidence(StrictModel):
    """The quality of the probabilities on held-out runs."""

    runs: int
    """Number of held-out runs."""
    right: float
    """Accuracy: the proportion of correct answers."""
    calibration_error: float
    """Expected calibration error: probability against accuracy, over ten bins."""
    brier: float
    """Brier score: the mean squared difference between probability and correctness (0 or 1)."""
    auroc: float | None = None
    """Probability that a correct answer has a higher probability than an incorrect one; None: all
    answers were correct, or all incorrect."""
    right_at_80: float
    """Accuracy among the 80 % of answers with the highest probabilities."""


class StoredSamples(StrictModel):
    """A model that was fitted to runs in which the question was asked again (resampled).

    See `Calibration` for `weights` and `curve`.
    """

    count: int = Field(ge=1)
    """Number of times that each question was asked again."""
    worker: str | None = None
    """The worker that was asked again in all runs; None: not the same worker in all of them."""
    own: bool
    """True if in each run the worker that had written the answer was asked again."""
    weights: dict[str, float]
    runs: int = Field(ge=1)
    curve: tuple[tuple[float, float], ...] = ()
    measured: MeasuredConfidence
    without: MeasuredConfidence
    """The quality of a model that was fitted to the same runs without their samples."""

    def is_of(self, setting: SampleSetting) -> bool:
        """Return True if the model was fitted to samples of this setting."""
        same = self.own if setting.worker is None else setting.worker == self.worker
        return same and setting.count == self.count

    def __str__(self) -> str:
        if not self.own and self.worker is None:
            return describe_samples(self.count, "different workers")
        return describe_samples(self.count, None if self.own else self.worker)


class StoredCalibration(StrictModel):
    """The `Calibration` of one conductor, as stored in the file."""

    weights: dict[str, float]
    workers: dict[str, float]
    runs: int = Field(ge=1)
    curve: tuple[tuple[float, float], ...] = ()
    measured: MeasuredConfidence
    sampled: StoredSamples | None = None


class ConfidenceFile(StrictModel):
    """The whole file."""

    format: int = Field(default=1, ge=1, le=1)
    conductors: dict[str, StoredCalibration]


def open_confidence(setting: ConfidenceSetting, folder: Path, pool: Pool) -> ConfidenceModel:
    """Return the fitted confidence model; without a file, a model that only collects samples.

    Raises:
        ConfigError: the file cannot be used, or the sampler does not exist.
    """
    samples = _read_sample_setting(setting, pool) if setting.samples else None
    if setting.file is None:
        return ConfidenceModel(samples=samples, collects=True)
    return read_confidence(folder / setting.file, samples)


def _read_sample_setting(setting: ConfidenceSetting, pool: Pool) -> SampleSetting:
    name = setting.sampler
    if name is None:
        return SampleSetting(count=setting.samples)
    models = [worker.id for worker in pool if worker.is_model]
    if name not in models:
        known = suggest_names(name, models)
        raise ConfigError(f"confidence.sampler: there is no language model {name!r}; {known}")
    return SampleSetting(count=setting.samples, worker=WorkerId(name))


def describe_samples(count: int, worker: str | None) -> str:
    """Return a phrase such as `3 samples of WORKER`; None stands for the worker that answered."""
    number = f"{count} sample{'' if count == 1 else 's'}"
    return f"{number} of {worker or 'the worker that answered'}"


def read_confidence(path: Path, samples: SampleSetting | None = None) -> ConfidenceModel:
    """Read a file of fitted confidence models.

    Args:
        path: the file.
        samples: the samples that the settings set; None: none.

    Raises:
        ConfigError: the file cannot be read, was not written by `batuta tune` or
            `batuta eval --calibrate`, has weights that this version does not know, or was not
            fitted to such samples.
    """
    try:
        body = path.read_bytes()[:_MAX_BYTES]
        stored = ConfidenceFile.model_validate_json(body)
    except OSError as error:
        raise ConfigError(f"confidence.file: {path} cannot be read: {error.strerror}") from None
    except ValidationError:
        need = "write it with batuta tune or batuta eval --calibrate"
        raise ConfigError(f"confidence.file: {path} has no fitted probabilities; {need}") from None
    _check_weights(path, stored)
    if samples is not None:
        _check_samples(path, stored, samples)
    conductors = {
        name: _make_calibration(fitted, samples) for name, fitted in stored.conductors.items()
    }
    return ConfidenceModel(conductors=conductors, samples=samples)


def _check_weights(path: Path, stored: ConfidenceFile) -> None:
    for name, fitted in stored.conductors.items():
        strange = set(fitted.weights) - set(SIGNALS)
        if fitted.sampled is not None:
            strange |= set(fitted.sampled.weights) - {*SIGNALS, SAMPLES}
        if strange:
            first = min(strange)
            why = f"has a weight {first!r} for {name}, which this version of Batuta does not know"
            need = "fit it anew with batuta tune or batuta eval --calibrate"
            raise ConfigError(f"confidence.file: {path} {why}; {need}")


def _check_samples(path: Path, stored: ConfidenceFile, samples: SampleSetting) -> None:
    sampled = [one.sampled for one in stored.conductors.values() if one.sampled is not None]
    if any(fitted.is_of(samples) for fitted in sampled):
        return
    was = f"fitted to {sampled[0]}" if sampled else "fitted without samples"
    wanted = describe_samples(samples.count, samples.worker)
    need = "leave out `file` and fit another with batuta eval --calibrate, or change the samples"
    raise ConfigError(
        f"confidence.file: {path} was {was}, and the settings ask for {wanted}; {need}"
    )


def _make_calibration(fitted: StoredCalibration, samples: SampleSetting | None) -> Calibration:
    workers = {WorkerId(worker): share for worker, share in fitted.workers.items()}
    again, sampled = fitted.sampled, None
    if again is not None and samples is not None and again.is_of(samples):
        curve = tuple(sorted(again.curve))
        sampled = Calibration(weights=again.weights, workers=workers, runs=again.runs, curve=curve)
    return Calibration(
        weights=fitted.weights,
        workers=workers,
        runs=fitted.runs,
        curve=tuple(sorted(fitted.curve)),
        sampled=sampled,
    )
