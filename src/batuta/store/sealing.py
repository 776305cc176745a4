"""Runs as nobody reads them who has not the server's secret, for places that replicas share."""

from __future__ import annotations

from secrets import token_bytes
from typing import Any, cast, final

import zstandard

from batuta.core import Run, RunId
from batuta.distribution import install_hint
from batuta.errors import ConfigError, StoreError
from batuta.store.codec import encode_run, read_run
from batuta.store.key_hasher import KeyHasher

_NONCE_BYTES = 12
"""What AES-GCM takes; drawn anew for each run."""
_MOST_BYTES = 256 << 20
"""Bytes of a run that was packed, at most."""


@final
class RunSealer:
    """Encrypts runs with AES-GCM; a run opens for the tenant and the id that it was sealed for."""

    def __init__(self, hasher: KeyHasher, extra: str) -> None:
        """Derive the key.

        Args:
            hasher: has the server's secret, which is the same for all replicas.
            extra: the extra of Batuta that installs the cipher.

        Raises:
            ConfigError: the cipher is not installed.
        """
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError:
            hint = install_hint(extra)
            raise ConfigError(f"runs that replicas share are encrypted: {hint}") from None
        self._cipher = AESGCM(bytes.fromhex(hasher.sign("waiting-runs", "key")))
        self._invalid = cast("type[Exception]", InvalidTag)
        self._hasher = hasher

    def name_tenant(self, tenant: str) -> str:
        """Return a name of the tenant that tells nobody who it is."""
        return self._hasher.sign("waiting-runs", f"tenant\0{tenant}")[:32]

    def seal(self, run: Run, tenant: str) -> bytes:
        """Return the run, packed and encrypted."""
        nonce = token_bytes(_NONCE_BYTES)
        packed = zstandard.compress(encode_run(run), 3)
        return nonce + self._cipher.encrypt(nonce, packed, _build_label(tenant, run.id))

    async def open(self, body: bytes, tenant: str, run_id: RunId) -> Run:
        """Return the run that was sealed for that tenant under that id.

        Raises:
            StoreError: it was sealed for another, with another secret, or by another version.
        """
        nonce, sealed = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        try:
            packed = cast("Any", self._cipher).decrypt(nonce, sealed, _build_label(tenant, run_id))
            text = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MOST_BYTES)
        except (self._invalid, ValueError, zstandard.ZstdError):
            raise StoreError("a waiting run of another replica cannot be opened") from None
        return await read_run(text)


def _build_label(tenant: str, run_id: RunId) -> bytes:
    return f"{tenant}\0{run_id}".encode("utf-8", "surrogatepass")
