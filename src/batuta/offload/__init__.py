"""Functions of this package called in processes that can be killed: hostile input costs no more."""

from batuta.offload.pool import (
    SHARED_PROCESSES,
    ProcessDiedError,
    ProcessFailedError,
    ProcessPool,
    ProcessStartError,
    ProcessTimeoutError,
)

__all__ = [
    "SHARED_PROCESSES",
    "ProcessDiedError",
    "ProcessFailedError",
    "ProcessPool",
    "ProcessStartError",
    "ProcessTimeoutError",
]
