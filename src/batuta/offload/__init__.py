"""Functions of this package called in processes that can be killed: hostile input costs no more."""

from batuta.offload.pool import (
    ProcessDiedError,
    ProcessPool,
    ProcessStartError,
    ProcessTimeoutError,
    call_in_process,
    call_in_process_now,
)

__all__ = [
    "ProcessDiedError",
    "ProcessPool",
    "ProcessStartError",
    "ProcessTimeoutError",
    "call_in_process",
    "call_in_process_now",
]
