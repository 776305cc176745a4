"""Hosts of one's own: network namespaces behind a bridge, each with an address and processes.

Nothing outside the namespaces is touched; all of it is gone when the block ends.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

NETWORK = "10.77.0"
_NUMBERS = itertools.count()
"""Of the networks of this process, which know nothing of each other."""
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_not(*programs: str) -> str | None:
    """Why there can be no hosts here; None: there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", *programs) if shutil.which(name, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: iproute2, haproxy, redis-server)"
    probe = f"batuta-probe-{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def command_line(pid: int) -> str:
    """Of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


class Host:
    """A namespace with one address."""

    def __init__(self, network: str, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.space = f"{network}-{name}"
        self.address = f"{NETWORK}.{number}"
        self.port = f"bt{number}"
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self._network = network
        self._running: list[subprocess.Popen[Any]] = []
        ip("netns", "add", self.space)
        ip("link", "add", self.port, "netns", f"{network}-net", "type", "veth", "peer", "name", "eth0", "netns", self.space)  # fmt: skip
        ip("-n", f"{network}-net", "link", "set", self.port, "master", "br0", "up")
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "link", "set", "eth0", "up")

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.space, *words]

    def start(self, *words: str, log: str = "log", **options: Any) -> subprocess.Popen[Any]:
        """A process of this host; it ends with the host."""
        file = (self.folder / log).open("ab")
        options = {"stdout": file, "stderr": subprocess.STDOUT, **options}
        process = subprocess.Popen(
            self.command(words), stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        file.close()
        self._running.append(process)
        return process

    def run(self, *words: str, **options: Any) -> str:
        """What a command printed, run to its end."""
        done = subprocess.run(
            self.command(words), capture_output=True, text=True, check=False, **options
        )
        if done.returncode:
            raise RuntimeError(f"{words} on {self.name}: {done.stdout}{done.stderr}")
        return done.stdout

    def link(self, *, up: bool) -> None:
        """Plugs its cable in, or out."""
        ip("-n", f"{self._network}-net", "link", "set", self.port, "up" if up else "down")

    def processes(self, name: str = "") -> list[int]:
        """Those whose command line begins so, started by whomever."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.space], capture_output=True, text=True, check=False
        )
        return [pid for pid in map(int, told.stdout.split()) if command_line(pid).startswith(name)]

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Every process of this host, at once; also those that left their group, as Ray's do."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, how)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        for process in self._running:
            process.wait(30)
        self._running.clear()

    def wait_for_port(self, port: int, seconds: float = 60) -> None:
        """Until something listens there."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if f":{port} " in self.run("ss", "-ltn"):
                return
            time.sleep(0.1)
        raise TimeoutError(f"nothing listens on port {port} of {self.name}: see {self.folder}")


class Hosts:
    """Namespaces behind one bridge."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._network = f"bt{os.getpid()}x{next(_NUMBERS)}"
        self._spaces = [f"{self._network}-net"]
        self.by_name: dict[str, Host] = {}
        try:
            ip("netns", "add", self._spaces[0])
            ip("-n", self._spaces[0], "link", "add", "br0", "type", "bridge")
            ip("-n", self._spaces[0], "link", "set", "br0", "up")
            for number, name in enumerate(names, 1):
                self._spaces.append(f"{self._network}-{name}")
                self.by_name[name] = Host(self._network, name, number, folder)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.by_name[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for host in self.by_name.values():
            host.kill()
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
