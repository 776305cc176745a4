"""The files that `batuta connect` writes, and how they become what they were."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batuta.cli.connect_settings import Agent, Connection
from batuta.errors import ConfigError

BACKUP = ".before-batuta"
"""Behind the name of a file: what it was before."""
_OWN = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRecord:
    """It records what was written for one client."""

    file: str
    written: str
    """A digest of what was written."""
    existed: bool
    mode: int
    key_id: str = ""
    """The key that was made; empty: none was."""
    url: str = ""


def find_record(folder: Path, client: str, file: Path, *, is_other: bool) -> Path:
    """Return where it is recorded what was written into a settings file.

    Args:
        folder: of all records.
        client: whose settings they are.
        file: the settings.
        is_other: where nothing was written into that file, the client's one other is meant.
    """
    own = folder / f"{client}-{_hash_content(str(file.resolve()).encode())[:16]}.json"
    if not is_other or own.exists():
        return own
    found = [*folder.glob(f"{client}*.json")]
    return found[0] if len(found) == 1 else own


class ClientSettings:
    """One client's settings file, its backup and its record."""

    def __init__(self, agent: Agent, file: Path, record: Path) -> None:
        self._agent = agent
        self._record = record
        self.noted = _read_record(record)
        """Return what was written before; None if nothing was, or if it was undone."""
        self.file = Path(self.noted.file) if self.noted else file.resolve()

    @property
    def backup(self) -> Path:
        """Return the file as it was before."""
        return self.file.with_name(self.file.name + BACKUP)

    def changed_text(self, to: Connection) -> str:
        """Return the settings with those of Batuta.

        Raises:
            ConfigError: they cannot be read or changed.
        """
        try:
            return self._agent.connect(self._text_before().decode(), to)
        except UnicodeDecodeError:
            raise ConfigError(f"{self.file} is not UTF-8; nothing was written") from None
        except ConfigError as error:
            raise ConfigError(f"{self.file} was left as it is: {error}") from None

    def _text_before(self) -> bytes:
        """Return the settings without what was written before."""
        now = _read_bytes(self.file)
        if self.noted is None:
            return now
        old = _read_bytes(self.backup)
        if _hash_content(now) == self.noted.written:
            return old
        return self._agent.disconnect(now.decode(), old.decode()).encode()

    def write(self, to: Connection, key_id: str) -> None:
        """Write the settings, so that nobody else can read them; keep what they were."""
        text = self.changed_text(to).encode()
        existed = self.noted.existed if self.noted else self.file.exists()
        mode = self.noted.mode if self.noted else _mode_of(self.file)
        record = ConnectRecord(
            file=str(self.file),
            written=_hash_content(text),
            existed=existed,
            mode=mode,
            key_id=key_id,
            url=to.url,
        )
        try:
            if existed and self.noted is None:
                _write_file(self.backup, _read_bytes(self.file), mode & _OWN)
            _write_file(self._record, json.dumps(asdict(record)).encode(), _OWN)
            _write_file(self.file, text, _OWN | (mode & 0o700))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None

    def undo(self) -> bool:
        """Make the file what it was; return False if it was changed since and the rest stays.

        Raises:
            ConfigError: nothing was written, or it cannot be read or written.
        """
        if self.noted is None:
            raise ConfigError(
                f"there is nothing to undo: {self._agent.title} was not connected here"
            )
        is_ours = _hash_content(_read_bytes(self.file)) == self.noted.written
        try:
            before = self._text_before()
            if before or self.noted.existed:
                _write_file(self.file, before, self.noted.mode)
            else:
                self.file.unlink(missing_ok=True)
            self.backup.unlink(missing_ok=True)
            self._record.unlink()
        except ConfigError as error:
            raise ConfigError(f"{self.file} was left as it is: {error}") from None
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None
        return is_ours


def _read_record(path: Path) -> ConnectRecord | None:
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return ConnectRecord(**found)
    except (OSError, ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"{path} is damaged: remove it, and put the backup back yourself"
        ) from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777 if path.exists() else _OWN


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_file(path: Path, content: bytes, mode: int) -> None:
    """Write the file whole or not at all; it is never readable by more than its mode says."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWN)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
