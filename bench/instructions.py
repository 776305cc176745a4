"""Counts the instructions that Python's interpreter executes, in all threads, by file: no clock, so the same on a busy machine."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class InstructionCounter:
    """Counts while it is on. Threads are counted that were started after `install`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._is_on = False

    @contextmanager
    def install(self) -> Iterator[None]:
        """Listen in this thread and in those that it starts; slow while it counts, near to nothing else."""
        before, before_in_threads = sys.gettrace(), threading.gettrace()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before_in_threads)  # type: ignore[arg-type] - None is allowed

    def start(self) -> None:
        """Count from here on."""
        self._counts = Counter()
        self._is_on = True

    def stop(self) -> Counter[str]:
        """The instructions since `start`, by file."""
        self._is_on = False
        return self._counts

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self._is_on or event != "call":
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        name = frame.f_code.co_filename
        counts = self._counts

        def count(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                counts[name] += 1
            return count

        return count
