"""Encrypts runs with the server's secret, for storage that replicas share."""

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
"""Size of an AES-GCM nonce; each run gets a random one."""


@final
class RunSealer:
    """Encrypts runs with AES-GCM, authenticated together with their tenant and id."""

    def __init__(self, hasher: KeyHasher, extra: str) -> None:
        """Derive the key.

        Args:
            hasher: holds the server's secret, which all replicas share.
            extra: the extra of Batuta that installs the cipher.

        Raises:
            ConfigError: the cipher is not installed.
        """
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError:
            hint = install_hint(extra)
            reason = f"runs that replicas share are encrypted, which needs the extra {extra!r}"
            raise ConfigError(f"{reason}: {hint}") from None
        self._cipher = AESGCM(bytes.fromhex(hasher.sign("waiting-runs", "key")))
        self._invalid = cast("type[Exception]", InvalidTag)
        self._hasher = hasher

    def name_tenant(self, tenant: str) -> str:
        """Return a pseudonym of the tenant, the same on all replicas."""
        return self._hasher.sign("waiting-runs", f"tenant\0{tenant}")[:32]

    def seal(self, run: Run, tenant: str) -> bytes:
        """Return the run, compressed and encrypted.

        Raises:
            StoreError: the run cannot be encoded.
        """
        nonce = token_bytes(_NONCE_BYTES)
        packed = zstandard.compress(encode_run(run), 3)
        return nonce + self._cipher.encrypt(nonce, packed, _build_label(tenant, run.id))

    async def open(self, body: bytes, tenant: str, run_id: RunId) -> Run:
        """Return the run that was sealed for that tenant under that id.

        Raises:
            StoreError: the body is damaged, was sealed for another tenant or id, with another
                secret or by another version.
        """
        nonce, sealed = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        try:
            packed = cast("Any", self._cipher).decrypt(nonce, sealed, _build_label(tenant, run_id))
            text = zstandard.ZstdDecompressor().decompress(packed)
        except (self._invalid, ValueError, zstandard.ZstdError):
            raise StoreError(
                "a waiting run of another replica cannot be opened: give all replicas the same "
                "BATUTA_SECRET and version of Batuta"
            ) from None
        return await read_run(text)


def _build_label(tenant: str, run_id: RunId) -> bytes:
    return f"{tenant}\0{run_id}".encode("utf-8", "surrogatepass")
