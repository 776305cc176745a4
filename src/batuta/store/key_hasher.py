"""Generates, parses and hashes API keys, whose texts are stored only as keyed hashes."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from batuta.environment import read_variable
from batuta.errors import ConfigError

KEY_PREFIX = "batuta"
SECRET_FILE = "server.secret"  # noqa: S105 - a name, not a secret
SECRET_VARIABLE = "BATUTA_SECRET"  # noqa: S105 - a name, not a secret
ADMIN_TOKEN_VARIABLE = "BATUTA_ADMIN_TOKEN"  # noqa: S105 - a name, not a secret
_MIN_SECRET_BYTES = 32
_ID_BYTES = 6
_KEY_PATTERN = re.compile(rf"{KEY_PREFIX}_([0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key; only `id` and `digest` are stored."""

    id: str
    text: str
    """The key as clients send it; shown once."""
    digest: bytes

    def __repr__(self) -> str:
        return f"IssuedKey(id={self.id!r})"


@final
class KeyHasher:
    """Generates keys and hashes them with the server's secret, which `repr` does not show."""

    __slots__ = ("_keyed",)

    def __init__(self, secret: bytes) -> None:
        """Set up the hasher.

        Raises:
            ConfigError: the secret is too short.
        """
        if len(secret) < _MIN_SECRET_BYTES:
            raise ConfigError(
                f"the server's secret ({SECRET_VARIABLE} or {SECRET_FILE}) must have at least "
                f"{_MIN_SECRET_BYTES} bytes"
            )
        # Copied for each hash: hmac.digest would release the GIL in every call, and the event loop
        # would wait until another thread releases the GIL.
        self._keyed = hmac.new(secret, digestmod=hashlib.sha256)

    def __repr__(self) -> str:
        return "KeyHasher(***)"

    def issue(self, key_id: str | None = None) -> IssuedKey:
        """Return a new key; with `key_id`, a new text for that existing key."""
        name = key_id or secrets.token_hex(_ID_BYTES)
        text = f"{KEY_PREFIX}_{name}_{secrets.token_urlsafe(32)}"
        return IssuedKey(name, text, self.digest(text))

    def digest(self, text: str) -> bytes:
        """Return the keyed hash of a key's text."""
        return self._hash(text.encode("utf-8", "surrogatepass")).digest()

    def sign(self, purpose: str, text: str) -> str:
        """Return a signature with the server's secret, valid for that purpose only."""
        return self._hash(f"{purpose}\0{text}".encode()).hexdigest()

    def _hash(self, message: bytes) -> hmac.HMAC:
        keyed = self._keyed.copy()
        keyed.update(message)
        return keyed


def parse_key_id(text: str) -> str | None:
    """Return the id in a key's text; None if the text is not formed like a key."""
    match = _KEY_PATTERN.fullmatch(text)
    return match[1] if match else None


def digests_equal(one: bytes, other: bytes | None) -> bool:
    """Compare two hashes in constant time; None equals no hash."""
    return other is not None and hmac.compare_digest(one, other)


def open_key_hasher(folder: Path, environ: Mapping[str, str] = os.environ) -> KeyHasher:
    """Return the hasher with the server's secret. Blocks.

    The secret is the value of BATUTA_SECRET, else the content of the file that BATUTA_SECRET_FILE
    names, else that of a file in `folder`, which is created on first use for its owner only.

    Raises:
        ConfigError: the secret is too short, or the file cannot be read or written, is damaged, or
            may be read by other users.
    """
    if given := read_variable(environ, SECRET_VARIABLE):
        return KeyHasher(given.encode())
    path = folder / SECRET_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _create_secret_file(path)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigError(f"other users may read {path}: run chmod 600 {path}")
        return KeyHasher(bytes.fromhex(path.read_text(encoding="ascii")))
    except ValueError:
        raise ConfigError(
            f"{path} is damaged: restore it, or remove it and create new keys"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}") from None


def admin_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token of BATUTA_ADMIN_TOKEN or BATUTA_ADMIN_TOKEN_FILE; empty: not set.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    return read_variable(environ, ADMIN_TOKEN_VARIABLE)


def _create_secret_file(path: Path) -> None:
    """Create the file atomically, unless it exists; of two processes' files, one is kept."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_MIN_SECRET_BYTES))
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
