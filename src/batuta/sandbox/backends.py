"""The tiers of isolation, strongest first, and how a supervisor of each tier is started."""

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
# the interpreter behind a virtual environment, which may contain a copy of it
base = getattr(sys, "_base_executable", None) or ""
executable = os.path.realpath(base if os.access(base, os.X_OK) else sys.executable)
print(json.dumps([list(sys.version_info[:2]), executable, sys.base_prefix, packages]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with its standard library and the packages installed for it."""

    executable: str
    """The real file, behind links and copies of virtual environments."""
    home: str
    """The folder with the `lib` that contains the standard library."""
    packages: tuple[str, ...]
    """Folders of installed packages."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders that the interpreter reads, and its executable if that is in none of them."""
        folders = (self.home, *self.packages)
        inside = any(Path(self.executable).is_relative_to(folder) for folder in folders)
        return folders if inside else (*folders, self.executable)


async def inspect_interpreter(python: str | Path) -> Interpreter:
    """Run the interpreter to find its real path and folders.

    Raises:
        SandboxError: the interpreter does not run, or is older than 3.11.
    """
    try:
        done = await anyio.run_process([str(python), "-c", INSPECT_SCRIPT], stderr=subprocess.PIPE)
        version, executable, home, packages = json.loads(done.stdout)
    except (OSError, ValueError, TypeError, subprocess.CalledProcessError) as error:
        raise SandboxError(f"{python} does not run as a Python interpreter: {error}") from error
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
"""The first Landlock version that restricts signals."""
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""The devices that programs may use. /dev/zero is missing because it can be mapped as memory that
belongs to no process."""
TMP = "/tmp"  # noqa: S108 - the one inside the sandbox
SHM = "/dev/shm"  # noqa: S108 - same


class SandboxBackend(StrEnum):
    """How strictly programs are isolated from the machine."""

    AUTO = "auto"
    """The strongest tier that passes its self-test."""
    BUBBLEWRAP = "bubblewrap"
    """Separate namespaces (files, processes, network) and seccomp."""
    LANDLOCK = "landlock"
    """Landlock and seccomp, for containers that forbid namespaces. Names, sizes and dates of the
    machine's files are visible, their contents are not. Modes and owners of files cannot be
    changed, a deleted file may not be mapped, and in a sandbox that root starts, a program cannot
    start another Python."""
    NONE = "none"
    """Limits only, no isolation: for trusted programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorLaunch:
    """How to start one supervisor."""

    command: tuple[str, ...]
    environment: dict[str, str]
    """All environment variables of the command."""
    first_order: dict[str, Any]
    """The settings that are sent to the supervisor before any test."""
    descriptors: tuple[int, ...] = ()
    """Open files that the supervisor inherits; its parent closes them after the start."""
    exit_timeout: float = 10.0
    """Seconds to wait for the supervisor to exit by itself; outside bubblewrap, a killed one leaves
    its processes behind."""
    folder: str | None = None
    """The scratch folder on the machine, if any; the supervisor creates and removes it."""


def build_launch(
    backend: SandboxBackend, interpreter: Interpreter, limits: SandboxLimits, uid: int | None
) -> SupervisorLaunch:
    """Return how to start a supervisor of that tier, which must not be `AUTO`.

    `uid` is the user that a supervisor started by root changes to, except in the tier `none`; it is
    None if root does not start the supervisor.

    Raises:
        SandboxError: the tier cannot use this machine, interpreter or temporary folder.
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
            raise SandboxError(f"{path} is in {TMP}, which a sandbox cannot see: move it elsewhere")
    return bwrap


def _system_path_options(path: str) -> list[str]:
    """Return the options that mount a system folder read-only, or recreate it as a link."""
    if Path(path).is_symlink():
        return ["--symlink", str(Path(path).readlink()), path]
    return ["--ro-bind-try", path, path]


def _bind_options(source: str, path: str) -> list[str]:
    """Return the options that mount a file or folder read-only at `path`.

    The parents are created first, because only root could enter the parents that bwrap creates.
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

    def visible_path(path: str) -> str:
        """Return a path that the unprivileged supervisor can open, even below /root."""
        if uid is None:
            return path
        inside = [root for root in roots if Path(path).is_relative_to(root)]
        if not inside:  # the supervisor cannot read it, and reports that
            return path
        root = max(inside, key=len)
        return f"/proc/self/fd/{opened[root]}{path[len(root) :]}"

    environment = _clean_environment(folder)
    if uid is not None:
        environment["PYTHONHOME"] = visible_path(interpreter.home)
        environment["LD_LIBRARY_PATH"] = visible_path(interpreter.home) + "/lib"
    packages = tuple(visible_path(path) for path in interpreter.packages)
    order = _first_order(
        SandboxBackend.LANDLOCK, limits, uid=uid, scratch=[folder], packages=packages
    )
    order |= {"readable": list(opened.values()), "devices": devices, "folder": folder}
    command = _supervisor_command(visible_path(interpreter.executable), INSIDE_FOLDER.parent)
    return SupervisorLaunch(
        command=command,
        environment=environment,
        first_order=order,
        descriptors=(*opened.values(), *devices),
        folder=folder,
    )


def _check_reachable(folder: str) -> None:
    """Raise `SandboxError` if other users cannot enter one of the folder's parents."""
    for parent in Path(folder).parents:
        if not parent.stat().st_mode & 0o001:
            raise SandboxError(
                f"the sandbox's user cannot enter {parent}, where temporary files are: "
                "set TMPDIR to a folder that every user may enter, such as /tmp"
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
    # The kernel counts all processes of a user; the supervisor counts only the program's.
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
    """Return an unused path for a temporary folder.

    The process that will remove the folder also creates it, so that no folder is left behind.
    """
    return str(Path(tempfile.gettempdir()).resolve() / f"batuta-{secrets.token_hex(8)}")


def _supervisor_command(executable: str, path: str | Path) -> tuple[str, ...]:
    """Return the supervisor's command; without `site`, because its import takes longest."""
    return (executable, "-S", "-s", "-P", "-X", "utf8", "-c", START_SUPERVISOR, str(path))


def _clean_environment(home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "TMPDIR": home,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",  # a reproducible order of sets
        "MALLOC_ARENA_MAX": "1",  # an arena reserves 64 MB a thread
        "OPENBLAS_NUM_THREADS": "1",  # threads count as processes, and do not survive a fork
        "OMP_NUM_THREADS": "1",
    }
