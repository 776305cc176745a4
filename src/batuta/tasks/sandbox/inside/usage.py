"""What the processes of a test use, and how to remove what they wrote."""
# ruff: noqa: PTH106, PTH108, PTH112, PTH114, PTH123, PTH208 - no pathlib here, see the package

from __future__ import annotations

import os

ENTRY = 16384
"""Bytes: more than an empty folder takes, since to make and remove it takes time as well."""
ENDLESS = 1 << 62


def family(parent: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as children:
                for child in map(int, children.read().split()):
                    found += [child, *family(child)]
    except OSError:
        pass  # it has just ended
    return found


def used(processes: list[int]) -> tuple[int, int]:
    """Threads and resident bytes of these processes."""
    threads = pages = 0
    for process in processes:
        try:
            threads += len(os.listdir(f"/proc/{process}/task"))
            with open(f"/proc/{process}/statm", encoding="ascii") as statm:
                pages += int(statm.read().split()[1])
        except OSError:
            pass  # it has just ended
    return threads, pages * os.sysconf("SC_PAGE_SIZE")


def stored(folder: str) -> int:
    """Bytes that a folder takes up: `ENTRY` at least for each entry, and no end of it if it hides.

    It hides behind a path too long to be opened, or a folder that may be entered but not read.
    """
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += max(ENTRY, entry.stat(follow_symlinks=False).st_blocks * 512)
                total += stored(entry.path) if entry.is_dir(follow_symlinks=False) else 0
    except FileNotFoundError:
        pass  # it has just been removed
    except (OSError, RecursionError):
        return ENDLESS
    return total


def threads_of_user() -> int:
    """How many threads the kernel counts for this user, as far as they can be seen."""
    mine, total = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", encoding="utf-8") as file:
                status = dict(line.split(":", 1) for line in file)
        except OSError:
            continue  # it has just ended
        total += int(status["Threads"]) if int(status["Uid"].split()[0]) == mine else 0
    return total


def removal(folder: str) -> list[str]:
    """The command that removes a folder which resists `remove`."""
    script = 'cd /; rm -rf "$0" 2>/dev/null || { chmod -R u+rwx "$0"; rm -rf "$0"; }'
    return ["/bin/sh", "-c", script, folder]


def remove(path: str) -> None:
    """A file, or a folder with all that is in it.

    Raises:
        OSError, RecursionError: the program made something that resists.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        with os.scandir(path) as entries:
            for entry in entries:
                remove(entry.path)
        os.rmdir(path)
    else:
        os.unlink(path)
