"""Runs, keys, budgets and files in a database, through the `Store`.

Every method that reads or writes raises `StoreError` if the database fails, even if its docstring
does not say so.
"""

from batuta.store.codec import FORMAT, decode_run, encode_run, read_run
from batuta.store.rows import RunSummary
from batuta.store.store import Store

__all__ = ["FORMAT", "RunSummary", "Store", "decode_run", "encode_run", "read_run"]
