"""Functions of this package called in processes that can be killed: hostile input costs no more."""

from batuta.offload.pool import ProcessDied, ProcessPool, TookTooLong, call_in_process

__all__ = ["ProcessDied", "ProcessPool", "TookTooLong", "call_in_process"]
