"""The Python that runs the programs, and the folders it needs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import anyio

from batuta.errors import SandboxError

INSPECT_SCRIPT = """
import json, os, site, sys
packages = [path for path in site.getsitepackages() if os.path.isdir(path)]
# the one behind a virtual environment, which may hold a copy of it in a folder of its own
base = getattr(sys, "_base_executable", None) or ""
executable = os.path.realpath(base if os.access(base, os.X_OK) else sys.executable)
print(json.dumps([list(sys.version_info[:2]), executable, sys.base_prefix, packages]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with its standard library and the packages installed for it."""

    executable: str
    """The real file, behind all links and copies of virtual environments."""
    home: str
    """The folder of the standard library's `lib`."""
    packages: tuple[str, ...]
    """Folders of installed packages."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders that it reads, and itself where it is in none of them."""
        folders = (self.home, *self.packages)
        inside = any(Path(self.executable).is_relative_to(folder) for folder in folders)
        return folders if inside else (*folders, self.executable)


async def inspect_interpreter(python: str | Path) -> Interpreter:
    """Ask the interpreter about itself.

    Raises:
        SandboxError: it does not run, or is older than 3.11.
    """
    try:
        done = await anyio.run_process([str(python), "-c", INSPECT_SCRIPT], stderr=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxError(f"{python} does not run as a Python interpreter: {error}") from error
    version, executable, home, packages = json.loads(done.stdout)
    if version < [3, 11]:
        raise SandboxError(f"{python} is Python {version[0]}.{version[1]}; 3.11 is needed")
    return Interpreter(executable, home, tuple(packages))
