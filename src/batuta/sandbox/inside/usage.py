"""Measures what the processes of a test use, and removes what they wrote."""
# ruff: noqa: PTH106, PTH108, PTH112, PTH114, PTH115 - no pathlib here, see the package
# ruff: noqa: PTH116, PTH118, PTH123, PTH208 - same

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_ENTRY_BYTES = 16384
"""Minimum bytes that a file or folder counts as, because removing one takes time too."""
UNBOUNDED = 1 << 62
"""The size of anything that cannot be measured."""


def thread_folders(process: int) -> list[str]:
    """Return the folders that describe a process's threads; none if it has just ended."""
    folder = f"/proc/{process}/task"
    try:
        return [f"{folder}/{task}" for task in os.listdir(folder)]
    except OSError:
        return []


def descendant_processes(parent: int) -> list[int]:
    """Return all descendants of a process."""
    descendants: list[int] = []
    for task in thread_folders(parent):
        with suppress(OSError):  # the process has just ended
            with open(f"{task}/children", encoding="ascii") as children:
                pids = [int(child) for child in children.read().split()]
            for child in pids:
                descendants += [child, *descendant_processes(child)]
    return descendants


def threads_and_memory(processes: list[int]) -> tuple[int, int]:
    """Return the number of threads and the resident bytes of these processes."""
    threads = pages = 0
    for process in processes:
        tasks = thread_folders(process)
        threads += len(tasks)
        # Every thread is read, because a main thread that has ended shows no memory.
        pages += max(map(resident_pages, tasks), default=0)
    return threads, pages * os.sysconf("SC_PAGE_SIZE")


def resident_pages(task: str) -> int:
    """Return the resident pages of a task; 0 if it has just ended."""
    try:
        with open(f"{task}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1])
    except OSError:
        return 0


def stored_bytes(folder: str) -> int:
    """Return the bytes on disk of all that is below a folder, at least `MIN_ENTRY_BYTES` each.

    The result is at least `UNBOUNDED` if something cannot be measured: a path too long to open, an
    unreadable folder.
    """
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += max(MIN_ENTRY_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                total += stored_bytes(entry.path) if entry.is_dir(follow_symlinks=False) else 0
    except FileNotFoundError:
        pass  # it has just been removed
    except (OSError, RecursionError):
        return UNBOUNDED
    return total


def deleted_open_bytes(processes: Iterable[int], folder: str) -> int:
    """Return the bytes of the folder's deleted files that these processes keep open.

    The result is at least `UNBOUNDED` if they cannot be measured: a process has an unreadable
    executable, or maps a deleted file.
    """
    sizes: dict[tuple[int, int], int] = {}
    for process in processes:
        for task in thread_folders(process):
            with suppress(OSError):  # it has just ended
                sizes |= deleted_open_files(task, folder)
    return sum(sizes.values())


def deleted_open_files(task: str, folder: str) -> dict[tuple[int, int], int]:
    """Return the bytes of the folder's deleted files that a task keeps open, by device and inode.

    The result is `UNBOUNDED`, under a key of zeros, if they cannot be measured.
    """
    sizes: dict[tuple[int, int], int] = {}
    try:
        for descriptor in os.listdir(f"{task}/fd"):
            path = f"{task}/fd/{descriptor}"
            with suppress(FileNotFoundError):  # it has just been closed
                if os.readlink(path).startswith(folder) and not (info := os.stat(path)).st_nlink:
                    sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
        with open(f"{task}/maps", "rb") as maps:
            inside = folder.encode()
            unmeasurable = any(inside in line and line.endswith(b" (deleted)\n") for line in maps)
    except PermissionError:
        unmeasurable = resident_pages(task) > 0  # without memory, it has ended
    return {(0, 0): UNBOUNDED} if unmeasurable else sizes


def threads_of_user() -> int:
    """Return how many threads this user has, as far as /proc shows them."""
    uid, total = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", encoding="utf-8") as file:
                status = dict(line.split(":", 1) for line in file)
        except OSError:
            continue  # it has just ended
        total += int(status["Threads"]) if int(status["Uid"].split()[0]) == uid else 0
    return total


def removal_command(folder: str) -> list[str]:
    """Return a command that removes a folder, whatever the modes of the folders in it."""
    script = 'cd /; rm -rf "$0" 2>/dev/null || { chmod -R u+rwx "$0"; rm -rf "$0"; }'
    return ["/bin/sh", "-c", script, folder]


def remove_tree(path: str) -> None:
    """Remove a file, or a folder with its contents.

    Raises:
        OSError, RecursionError: the program created something that cannot be removed in this way.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        with os.scandir(path) as entries:
            for entry in entries:
                remove_tree(entry.path)
        os.rmdir(path)
    else:
        os.unlink(path)


def empty_folder(folder: str) -> bool:
    """Remove a folder's contents; return False if that failed."""
    try:
        for name in os.listdir(folder):
            remove_tree(os.path.join(folder, name))
    except (OSError, RecursionError):
        return False
    return True
