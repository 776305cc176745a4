"""The ways to build a sandbox, strongest first, each as the command that starts a supervisor."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import anyio

from batuta.errors import SandboxError
from batuta.sandbox import inside
from batuta.sandbox.inside.kernel import landlock_version
from batuta.sandbox.program import SandboxLimits
from batuta.sandbox.seccomp import count_filter, seccomp_filter

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


START_SUPERVISOR = (
    "import sys; sys.path.insert(0, sys.argv[1]); from inside.supervisor import serve_orders; "
    "sys.path.pop(0); serve_orders()"
)
INSIDE_FOLDER = Path(inside.__file__).parent
SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
MIN_LANDLOCK_VERSION = 6
"""The first Landlock that keeps signals inside."""
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""Not zero: it can be mapped as memory that belongs to no process."""
TMP = "/tmp"  # noqa: S108 - the one inside the sandbox
SHM = "/dev/shm"  # noqa: S108 - same


class SandboxBackend(StrEnum):
    """How strictly programs are kept apart from the machine."""

    AUTO = "auto"
    """The strongest that passes its self-test."""
    BUBBLEWRAP = "bubblewrap"
    """Namespaces of its own (files, processes, network) and seccomp."""
    LANDLOCK = "landlock"
    """Landlock and seccomp, for containers that forbid namespaces. Names, sizes and dates of the
    machine's files can be seen, their contents cannot; modes and owners of files cannot be
    changed; a file may not be mapped once it is removed; started by root, a program cannot start
    another Python."""
    NONE = "none"
    """Limits only, no isolation: for programs that one would run anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorLaunch:
    """How to start one supervisor."""

    command: tuple[str, ...]
    environment: dict[str, str]
    first_order: dict[str, Any]
    """The supervisor's first order."""
    descriptors: tuple[int, ...] = ()
    """Open files that it inherits; whoever starts it closes them."""
    exit_timeout: float = 10.0
    """Seconds that it has to end by itself; killed, it would leave behind what it started."""
    folder: str | None = None
    """Its scratch, where that is a folder of the machine; the supervisor makes and removes it."""


def build_launch(
    backend: SandboxBackend, interpreter: Interpreter, limits: SandboxLimits, uid: int | None
) -> SupervisorLaunch:
    """Return how to start a supervisor of that tier; `uid` is what it becomes if root starts it.

    Raises:
        SandboxError: something that the tier needs is missing.
    """
    try:
        if backend is SandboxBackend.BUBBLEWRAP:
            return _bubblewrap_launch(interpreter, limits, uid)
        if backend is SandboxBackend.LANDLOCK:
            return _landlock_launch(interpreter, limits, uid)
        return _unisolated_launch(interpreter, limits)
    except OSError as error:
        raise SandboxError(f"a sandbox cannot be prepared: {error}") from error


def _bubblewrap_launch(
    interpreter: Interpreter, limits: SandboxLimits, uid: int | None
) -> SupervisorLaunch:
    command = [_find_bwrap(interpreter), "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--hostname", "sandbox"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if uid is None:
        command += ["--unshare-user", "--disable-userns"]
    else:  # bwrap itself stays root, to reach the interpreter; the supervisor then becomes `uid`
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for path in SYSTEM_PATHS:
        command += _system_path_options(path)
    command += ["--proc", "/proc", "--perms", "755", "--dir", "/dev"]
    command += ["--symlink", "/proc/self/fd", "/dev/fd"]
    for path in DEVICES:
        command += ["--dev-bind-try", path, path]
    for path in (TMP, SHM):
        command += ["--perms", "1777", "--size", str(limits.files), "--tmpfs", path]
    for path in interpreter.roots:
        command += _bind_options(path, path)
    command += [
        *_bind_options(str(INSIDE_FOLDER), "/batuta/inside"),
        "--remount-ro",
        "/",
        "--chdir",
        TMP,
    ]
    order = _first_order(
        SandboxBackend.BUBBLEWRAP,
        limits,
        uid=uid,
        scratch=[TMP, SHM],
        packages=interpreter.packages,
    )
    # A clean environment for bwrap itself: --clearenv would leave ours in /proc/1/environ.
    return SupervisorLaunch(
        command=(*command, *_supervisor_command(interpreter.executable, "/batuta")),
        environment=_clean_environment(TMP),
        first_order=order,
        exit_timeout=0.3,
    )


def _find_bwrap(interpreter: Interpreter) -> str:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bwrap is not installed (apt-get install bubblewrap)")
    for path in interpreter.roots:
        if Path(path).is_relative_to(TMP):
            raise SandboxError(f"{path} is needed, but its {TMP} is empty: move it elsewhere")
    return bwrap


def _system_path_options(path: str) -> list[str]:
    """Return the options that show a folder of the system, or the link that stands in its place."""
    if Path(path).is_symlink():
        return ["--symlink", str(Path(path).readlink()), path]
    return ["--ro-bind-try", path, path]


def _bind_options(source: str, path: str) -> list[str]:
    """Return the options that show a folder at `path`.

    Its parents would be closed to all but root.
    """
    parents = [str(parent) for parent in reversed(Path(path).parents)][1:]
    made = [word for parent in parents for word in ("--perms", "755", "--dir", parent)]
    return [*made, "--ro-bind", source, path]


def _landlock_launch(
    interpreter: Interpreter, limits: SandboxLimits, uid: int | None
) -> SupervisorLaunch:
    version = landlock_version()
    if version < MIN_LANDLOCK_VERSION:
        raise SandboxError(
            f"this kernel has Landlock {version}, {MIN_LANDLOCK_VERSION} is needed (Linux 6.12)"
        )
    folder = new_temporary_path()
    if uid is not None:
        _check_reachable(folder)
    roots = {path for path in (*SYSTEM_PATHS, *interpreter.roots) if Path(path).exists()}
    opened = {path: os.open(path, os.O_PATH) for path in roots}
    devices = [os.open(path, os.O_PATH) for path in DEVICES if Path(path).exists()]

    def place(path: str) -> str:
        """Return the supervisor's path; unprivileged, it may not pass folders like /root."""
        if uid is None:
            return path
        inside = [root for root in roots if Path(path).is_relative_to(root)]
        if not inside:  # nothing that is told to be read; the supervisor will say what it misses
            return path
        root = max(inside, key=len)
        return f"/proc/self/fd/{opened[root]}{path[len(root) :]}"

    environment = _clean_environment(folder)
    if uid is not None:
        environment["PYTHONHOME"] = place(interpreter.home)
        environment["LD_LIBRARY_PATH"] = place(interpreter.home) + "/lib"
    packages = tuple(place(path) for path in interpreter.packages)
    order = _first_order(
        SandboxBackend.LANDLOCK, limits, uid=uid, scratch=[folder], packages=packages
    )
    order |= {"readable": list(opened.values()), "devices": devices, "folder": folder}
    command = _supervisor_command(place(interpreter.executable), INSIDE_FOLDER.parent)
    return SupervisorLaunch(
        command=command,
        environment=environment,
        first_order=order,
        descriptors=(*opened.values(), *devices),
        folder=folder,
    )


def _check_reachable(folder: str) -> None:
    """Return if another user than root can enter the folder's parents, else raise."""
    for parent in Path(folder).parents:
        if not parent.stat().st_mode & 0o001:
            raise SandboxError(
                f"the sandbox's user cannot enter {parent}, where temporary files are: "
                "set TMPDIR to a folder that everybody may enter, such as /tmp"
            )


def _unisolated_launch(interpreter: Interpreter, limits: SandboxLimits) -> SupervisorLaunch:
    folder = new_temporary_path()
    order = _first_order(
        SandboxBackend.NONE, limits, uid=None, scratch=[folder], packages=interpreter.packages
    )
    order |= {"folder": folder}
    command = _supervisor_command(interpreter.executable, INSIDE_FOLDER.parent)
    return SupervisorLaunch(
        command=command, environment=_clean_environment(folder), first_order=order, folder=folder
    )


def _first_order(
    backend: SandboxBackend,
    limits: SandboxLimits,
    uid: int | None,
    scratch: list[str],
    *,
    packages: tuple[str, ...],
) -> dict[str, Any]:
    calls = (
        seccomp_filter(ownership=backend is SandboxBackend.BUBBLEWRAP)
        if backend is not SandboxBackend.NONE
        else b""
    )
    # The kernel counts all processes of a user; a program's own are to be counted here.
    counted = backend is SandboxBackend.LANDLOCK and uid is None
    return {
        "tier": backend.value,
        "uid": uid,
        "limits": asdict(limits),
        "filter": calls.hex(),
        "count": count_filter().hex() if counted else "",
        "scratch": scratch,
        "packages": list(packages),
        "readable": [],
        "devices": [],
        "folder": None,
    }


def new_temporary_path() -> str:
    """Return a path for a new temporary folder.

    Whoever removes it makes it, so that none is left over.
    """
    return str(Path(tempfile.gettempdir()).resolve() / f"batuta-{secrets.token_hex(8)}")


def _supervisor_command(executable: str, path: str | Path) -> tuple[str, ...]:
    """Return the supervisor's command; without `site`, which takes longer than all else."""
    return (executable, "-S", "-s", "-P", "-X", "utf8", "-c", START_SUPERVISOR, str(path))


def _clean_environment(home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "TMPDIR": home,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",  # the same order of sets every time
        "MALLOC_ARENA_MAX": "1",  # an arena reserves 64 MB a thread
        "OPENBLAS_NUM_THREADS": "1",  # threads count as processes, and do not survive a fork
        "OMP_NUM_THREADS": "1",
    }
