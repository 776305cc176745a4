"""Work outside the event loop: in processes that can be killed, or in a thread."""

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
