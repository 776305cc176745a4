"""Runs on disk: a codec, two tables, their migrations, and the Store that serves them.

What reads or writes raises `StoreError` where the database fails; no method says it again.
"""

from batuta.store.codec import FORMAT, decode_run, encode_run, read_run
from batuta.store.rows import RunSummary
from batuta.store.store import Store

__all__ = ["FORMAT", "RunSummary", "Store", "decode_run", "encode_run", "read_run"]
