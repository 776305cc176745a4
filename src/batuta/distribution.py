"""The name under which Batuta is installed, its version, and how to install packages beside it.

If uv or pipx made a separate environment for Batuta, plain pip would install into another one. So a
hint uses the command of the tool that made the environment, if it is known.
"""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

DISTRIBUTION = "batuta-llm"
"""The name on PyPI; `batuta` there is an unrelated project. The import stays `batuta`."""
_UV_RECEIPT = "uv-receipt.toml"
_PIPX_RECEIPT = "pipx_metadata.json"


@dataclass(frozen=True, slots=True)
class Installation:
    """The place where the running code is installed."""

    prefix: Path
    """The environment's folder."""
    clone: Path | None
    """The clone of the repository that the code runs from; None: the code is an installed wheel."""
    is_virtual: bool
    """True in a virtual environment."""

    def package_hint(self, *packages: str, no_deps: bool = False) -> str:
        """Return the command that installs other packages beside Batuta.

        Args:
            packages: the names of the packages.
            no_deps: whether they are installed without their dependencies.
        """
        names = " ".join(packages)
        flags = "--no-deps " if no_deps else ""
        if self._has(_UV_RECEIPT) and not no_deps:
            return self._uv_tool_command((), packages)
        if self._has(_PIPX_RECEIPT) and not no_deps:
            return f"pipx inject {DISTRIBUTION} {names}"
        if self._has(_PIPX_RECEIPT):
            return f"pipx runpip {DISTRIBUTION} install {flags}{names}"
        return f"{self._pip_install()} {flags}{names}"

    def extra_hint(self, *extras: str) -> str:
        """Return the command that installs these extras."""
        names = ",".join(extras)
        if self._has(_UV_RECEIPT):
            return self._uv_tool_command(extras, ())
        if self._has(_PIPX_RECEIPT):
            return f"pipx runpip {DISTRIBUTION} install {self._target(names)}"
        return f"{self._pip_install()} {self._target(names)}"

    def _target(self, extras: str) -> str:
        """Return Batuta with these extras, as the end of a command `pip install`."""
        if self.clone is None:
            return f"'{DISTRIBUTION}[{extras}]'"
        path = "." if self._has_own_environment() else str(self.clone)
        return f"-e '{path}[{extras}]'"

    def _pip_install(self) -> str:
        """Return the start of an install command; uv's if uv left pip out of the environment."""
        if find_spec("pip") is None and _is_made_by_uv(self.prefix):
            return f"uv pip install --python {shlex.quote(str(self.prefix))}"
        if self.clone is None:
            return "pip install"
        if not self.is_virtual:
            return f"{shlex.quote(sys.executable)} -m pip install"
        pip = self.prefix / ("Scripts" if os.name == "nt" else "bin") / "pip"
        if self._has_own_environment():
            pip = pip.relative_to(self.clone)
        return f"{shlex.quote(str(pip))} install"

    def _has_own_environment(self) -> bool:
        """Return True if the environment is in the clone; commands are then run from the clone."""
        return self.clone is not None and self.prefix.is_relative_to(self.clone)

    def _uv_tool_command(self, extras: Iterable[str], packages: Iterable[str]) -> str:
        """Return the command of `uv tool`, which also names the extras and packages installed now.

        Otherwise uv, which makes the environment anew, would remove them.
        """
        installed_extras, installed_packages = _read_uv_receipt(self.prefix / _UV_RECEIPT)
        names = ",".join(dict.fromkeys((*installed_extras, *extras)))
        bracketed = f"[{names}]" if names else ""
        target = DISTRIBUTION if self.clone is None else str(self.clone)
        editable = "" if self.clone is None else "--editable "
        beside = dict.fromkeys((*installed_packages, *packages))
        others = "".join(f" --with {name}" for name in beside)
        return f"uv tool install --force {editable}{shlex.quote(target + bracketed)}{others}"

    def _has(self, receipt: str) -> bool:
        return (self.prefix / receipt).is_file()


@cache
def package_version() -> str:
    """Return the installed version of Batuta."""
    return version(DISTRIBUTION)


@cache
def find_clone() -> Path | None:
    """Return the clone of the repository that the code runs from; None: a wheel is installed."""
    root = Path(__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def find_installation() -> Installation:
    """Return where the running code is installed."""
    return Installation(
        prefix=Path(sys.prefix),
        clone=find_clone(),
        is_virtual=sys.prefix != sys.base_prefix,
    )


def install_hint(*extras: str) -> str:
    """Return the command that installs these extras where this code runs."""
    return find_installation().extra_hint(*extras)


def package_hint(*packages: str, no_deps: bool = False) -> str:
    """Return the command that installs other packages where this code runs."""
    return find_installation().package_hint(*packages, no_deps=no_deps)


def _is_made_by_uv(prefix: Path) -> bool:
    """Return True if uv made the environment, which then may have no pip."""
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in text.splitlines())


def _read_uv_receipt(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the extras of Batuta in uv's receipt, and the other packages; empty if unreadable."""
    try:
        receipt: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        wanted = cast("list[dict[str, Any]]", receipt["tool"]["requirements"])
        own = [entry for entry in wanted if entry["name"] == DISTRIBUTION]
        beside = [str(entry["name"]) for entry in wanted if entry["name"] != DISTRIBUTION]
        extras = [str(extra) for entry in own for extra in entry.get("extras", ())]
    except (OSError, ValueError, KeyError, TypeError):
        return (), ()
    return tuple(extras), tuple(beside)
