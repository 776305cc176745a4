"""One thread for numpy's matrix products.

On matrices of this size the BLAS behind numpy starts a thread for each core and waits for all of
them: on a machine with other work to do, a plan took 20 times as long.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs] - none

_SETTING_LOCK = Lock()
"""The setting is the whole process's, so whoever changes it computes alone."""


@contextmanager
def single_blas_thread() -> Generator[None]:
    """Let matrix products use the calling thread alone within the block."""
    with _SETTING_LOCK, _blas_controller().limit(limits=1):
        yield


def limit_blas_to_one_thread() -> None:
    """Let matrix products of this process use one thread from now on, for a process a core."""
    with _SETTING_LOCK:
        _blas_controller().limit(limits=1)


@cache
def _blas_controller() -> Any:
    np.matmul(np.ones((1, 1)), np.ones((1, 1)))  # from here on the BLAS is loaded and can be found
    loaded: Any = ThreadpoolController()
    return loaded.select(user_api="blas")
