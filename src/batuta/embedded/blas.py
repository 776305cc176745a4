"""Limits numpy's matrix products to one thread.

Even for small matrices the BLAS behind numpy starts a thread per core and waits for all of them: on
a busy machine, a plan took 20 times as long.
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
"""Held while the setting is changed and used, because it applies to the whole process."""


@contextmanager
def single_blas_thread() -> Generator[None]:
    """Limit matrix products to one thread in the block; other threads wait for its end.

    Blocks must not be nested.
    """
    with _SETTING_LOCK, _blas_controller().limit(limits=1):
        yield


def limit_blas_to_one_thread() -> None:
    """Limit matrix products to one thread for good, for programs with one process per core."""
    with _SETTING_LOCK:
        _blas_controller().limit(limits=1)


@cache
def _blas_controller() -> Any:
    np.matmul(np.ones((1, 1)), np.ones((1, 1)))  # loads the BLAS, so that it can be found
    loaded: Any = ThreadpoolController()
    return loaded.select(user_api="blas")
