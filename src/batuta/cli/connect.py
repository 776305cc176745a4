"""`batuta connect`: point a coding agent at a Batuta server, or undo that."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import typer

from batuta.cli.connect_settings import AGENTS, Agent, Connection, question_body
from batuta.cli.options import BUDGET_PANEL, check_url, command_actor
from batuta.clients import HttpTransport
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.config.load import store_target
from batuta.environment import data_folder, read_variable
from batuta.errors import BatutaError, ClientError, ConfigError, ProviderAuthError
from batuta.rendering.terminal import write_error, write_output
from batuta.store import Store
from batuta.store.key_hasher import admin_token, open_key_hasher
from batuta.store.key_permissions import read_permissions

BACKUP = ".before-batuta"
"""Suffix of the backup of a settings file."""
_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRecord:
    """A record of the settings written for one agent, from which they can be undone."""

    file: str
    """The path of the settings file."""
    written: str
    """The SHA-256 of the settings that were written."""
    existed: bool
    """Whether the file existed, or had settings of its own, before the agent was connected."""
    mode: int
    """The file's permission bits before it was changed; 0o600 for a new file."""
    key_id: str = ""
    """The id of the key created for the agent; empty if none was created."""
    url: str = ""
    """The address of the server."""


def find_record(folder: Path, client: str, file: Path, *, any_file: bool) -> Path:
    """Return the path of the record for a settings file; there may be no record yet.

    Args:
        folder: the folder of all records.
        client: the agent's name.
        file: the settings file.
        any_file: without a record for that file, return the agent's record if it has only one.
    """
    own = folder / f"{client}-{_hash_content(str(file.resolve()).encode())[:16]}.json"
    if not any_file or own.exists():
        return own
    found = [*folder.glob(f"{client}*.json")]
    return found[0] if len(found) == 1 else own


class ClientSettings:
    """One agent's settings file, its backup and its record.

    The constructor raises `ConfigError` if the record cannot be read.
    """

    def __init__(self, agent: Agent, file: Path, record: Path) -> None:
        self._agent = agent
        self._record_path = record
        self.record = _read_record(record)
        """The record of an earlier `batuta connect`; None if there was none or it was undone."""
        self.file = Path(self.record.file) if self.record else file.resolve()

    @property
    def backup(self) -> Path:
        """The copy of the file without Batuta's settings; made only if the file existed before."""
        return self.file.with_name(self.file.name + BACKUP)

    def changed_text(self, to: Connection) -> str:
        """Return the content of the settings file with Batuta's settings in it.

        Raises:
            ConfigError: the settings cannot be read or changed.
        """
        try:
            return self._agent.connect(self._text_before().decode(), to)
        except UnicodeDecodeError:
            raise ConfigError(f"{self.file} is not UTF-8; nothing was written") from None
        except ConfigError as error:
            raise ConfigError(f"{self.file} was left unchanged: {error}") from None

    def _text_before(self) -> bytes:
        """Return the content of the settings file without Batuta's settings.

        If the file was edited after Batuta wrote it, the edits are kept; else this is the backup.
        """
        now = _read_bytes(self.file)
        if self.record is None:
            return now
        old = _read_bytes(self.backup)
        if _hash_content(now) == self.record.written:
            return old
        return self._agent.disconnect(now.decode(), old.decode()).encode()

    def write(self, to: Connection, key_id: str) -> None:
        """Back up the settings, then write the new ones so that only their owner can read them.

        Raises:
            ConfigError: the settings cannot be read, changed or written.
        """
        text, before = self.changed_text(to).encode(), self._text_before()
        existed = bool(before) or (self.record.existed if self.record else self.file.exists())
        mode = self.record.mode if self.record else _mode_of(self.file)
        record = ConnectRecord(
            file=str(self.file),
            written=_hash_content(text),
            existed=existed,
            mode=mode,
            key_id=key_id,
            url=to.url,
        )
        try:
            if existed:
                _write_file(self.backup, before, mode & _OWNER_ONLY)
            _write_file(self._record_path, json.dumps(asdict(record)).encode(), _OWNER_ONLY)
            _write_file(self.file, text, _OWNER_ONLY | (mode & 0o700))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None

    def undo(self) -> bool:
        """Remove Batuta's settings; return False if the file had been edited, and keep the edits.

        Raises:
            ConfigError: the agent was not connected, or the file cannot be read or written.
        """
        if self.record is None:
            raise ConfigError(
                f"there is nothing to undo: {self._agent.title} was not connected here"
            )
        is_ours = _hash_content(_read_bytes(self.file)) == self.record.written
        try:
            before = self._text_before()
            if before or self.record.existed:
                _write_file(self.file, before, self.record.mode)
            else:
                self.file.unlink(missing_ok=True)
            self.backup.unlink(missing_ok=True)
            self._record_path.unlink()
        except UnicodeDecodeError:
            raise ConfigError(f"{self.file} is not UTF-8; nothing was written") from None
        except ConfigError as error:
            raise ConfigError(f"{self.file} was left unchanged: {error}") from None
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
            f"{path} is damaged: delete it, and copy the backup (*{BACKUP}) over the agent's "
            "settings file"
        ) from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777 if path.exists() else _OWNER_ONLY


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_file(path: Path, content: bytes, mode: int) -> None:
    """Write the file atomically; users whom `mode` excludes can never read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


KEY_VARIABLE = "BATUTA_API_KEY"
_SERVER = "http://127.0.0.1:8765"
_PER_DAY = "10"
_TENANT = "default"
_SHOWN_KEY = "YOUR_KEY"
_SECONDS = 120.0
"""Seconds of silence after which a request to the server fails."""
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class AgentName(StrEnum):
    """The coding agents that can be connected."""

    CLAUDE = "claude"
    CODEX = "codex"
    OPENCODE = "opencode"
    AIDER = "aider"


def connect_command(
    client: Annotated[AgentName, typer.Argument(help="The coding agent to set up.")],
    url: Annotated[str, typer.Option(help="The address of the running server.")] = _SERVER,
    model: Annotated[
        str, typer.Option(help="The model that the agent uses: any that the server lists.")
    ] = "batuta-ultra",
    *,
    per_day: Annotated[
        str,
        typer.Option(
            metavar="DOLLARS",
            help="The daily budget (UTC) of the key that is created, if the server needs one and "
            "BATUTA_API_KEY is not set.",
            rich_help_panel=BUDGET_PANEL,
        ),
    ] = _PER_DAY,
    file: Annotated[
        Path | None, typer.Option(help="The agent's settings file, if not the usual one.")
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print what would be written into an empty file.")
    ] = False,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            help="Remove Batuta's settings, keep later changes, and revoke the key if one was "
            "created for the agent.",
        ),
    ] = False,
) -> None:
    """Make Claude Code, Codex, opencode or aider use a running server."""
    agent = AGENTS[client]
    path = file or agent.find_file(os.environ, Path.home())
    if print_only:
        to = Connection(url=_plain_url(url), model=model, key=_SHOWN_KEY)
        write_error(f"in {path}:\n")
        write_output(agent.connect("", to))
        return
    record = find_record(data_folder() / "connect", client, path, any_file=undo and file is None)
    settings = ClientSettings(agent, path, record)
    if undo:
        _undo_settings(settings, agent)
        return
    to = Connection(url=_plain_url(url), model=model)
    settings.changed_text(to)  # an error is raised before a key is created
    write_error(anyio.run(_set_up_agent, settings, agent, to, per_day))


def _plain_url(url: str) -> str:
    check_url("--url", url)
    return url.rstrip("/").removesuffix("/v1")


async def _set_up_agent(
    settings: ClientSettings, agent: Agent, to: Connection, per_day: str
) -> str:
    """Find or create a key, ask a test question, write the settings; return the message.

    A key that was created for an earlier connection is revoked.
    """
    old = settings.record
    async with HttpTransport(idle=_SECONDS) as http:
        async with _find_key(http, agent, to, per_day) as (key, key_id):
            to = Connection(url=to.url, model=to.model, key=key)
            await _ask_once(http, agent, to, is_new=bool(key_id))
            settings.write(to, key_id)
        if old and old.key_id:
            await _revoke_key(http, old.url, old.key_id)
    limit = f", with the new key {key_id} for at most ${per_day} a day" if key_id else ""
    kept = f"the backup is {settings.backup}" if settings.backup.exists() else "the file is new"
    return (
        f"{agent.title} now uses {to.model} at {to.url}{limit}: start it with `{agent.start}`; "
        f"its settings are in {settings.file} ({kept}).\n"
    )


async def _ask_once(http: HttpTransport, agent: Agent, to: Connection, *, is_new: bool) -> None:
    """Send one small question to the API that the agent will call.

    Raises:
        ConfigError: the key is rejected, or the question is not answered.
    """
    try:
        await http.post(
            _make_target(to.url + agent.route, to.key), question_body(agent.route, to.model)
        )
    except ProviderAuthError as error:
        if is_new:
            raise ConfigError(
                f"the server at {to.url} does not keep its keys in {store_target()}: create "
                f"a key on the server's machine, and set {KEY_VARIABLE} to it"
            ) from None
        raise ConfigError(f"{to.url} rejects the key of {KEY_VARIABLE}: {error}") from None
    except ClientError as error:
        raise ConfigError(
            f"{to.model} at {to.url} did not answer one question, so nothing was written: {error}"
        ) from None


@asynccontextmanager
async def _find_key(
    http: HttpTransport, agent: Agent, to: Connection, per_day: str
) -> AsyncGenerator[tuple[str, str]]:
    """Yield the key to use, and its id if it was created here.

    The key of BATUTA_API_KEY is preferred. The key is empty if the server needs none, and the id is
    empty if none was created. If the block raises an error, a created key is revoked.

    Raises:
        ConfigError: no server answers, no key can be created, or a key's file cannot be read.
        StoreError: the store, in which the key would be created, cannot be used.
    """
    given = read_variable(os.environ, KEY_VARIABLE)
    if given or not await _needs_key(http, to.url):
        yield given, ""
        return
    key, key_id = await _make_key(http, agent, to.url, per_day)
    try:
        yield key, key_id
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _revoke_key(http, to.url, key_id)
        raise


async def _needs_key(http: HttpTransport, url: str) -> bool:
    try:
        await http.get(_make_target(f"{url}/v1/models"))
    except ProviderAuthError:
        return True
    except ClientError as error:
        raise ConfigError(
            f"no Batuta server answers at {url}: start one with `batuta serve`, or name it with "
            f"--url ({error})"
        ) from None
    return False


async def _make_key(http: HttpTransport, agent: Agent, url: str, per_day: str) -> tuple[str, str]:
    """Create a key with a budget: over the API if an admin token is set, else in the store.

    Raises:
        ConfigError: the budget is invalid, the server does not create the key, or it runs on
            another machine and no admin token is set.
        StoreError: the store cannot be used.
    """
    try:
        permissions = read_permissions({"per_day": per_day})
    except ValueError as error:
        raise ConfigError(str(error).replace("per_day", "--per-day", 1)) from None
    if token := admin_token():
        body = {"name": agent.title, "limits": {"per_day": per_day}}
        try:
            made = await http.post(_make_target(f"{url}/v1/admin/keys", token), body)
        except ClientError as error:
            raise ConfigError(
                f"{url} did not create a key with BATUTA_ADMIN_TOKEN: {error}"
            ) from None
        return made["key"], made["id"]
    if urlsplit(url).hostname not in _LOOPBACK:
        raise ConfigError(
            f"{url} needs a key: create one on its machine (`batuta keys create NAME`), and "
            f"set {KEY_VARIABLE} to it"
        )
    hasher = open_key_hasher(data_folder())
    async with Store.open(store_target()) as store:
        key, issued = await store.keys.create(
            hasher, _TENANT, agent.title, permissions, by=command_actor()
        )
    return issued.text, key.id


async def _revoke_key(http: HttpTransport, url: str, key_id: str) -> None:
    """Revoke a key that was created for an agent; print an error if that fails."""
    try:
        if token := admin_token():
            await http.post(_make_target(f"{url}/v1/admin/keys/{key_id}/revoke", token), {})
            return
        async with Store.open(store_target()) as store:
            await store.keys.revoke(key_id, by=command_actor())
    except BatutaError as error:
        write_error(f"the key {key_id} is not revoked: {error}\n")


def _make_target(url: str, key: str = "") -> HttpTarget:
    headers: dict[str, Any] = {"authorization": f"Bearer {key}"} if key else {}
    return HttpTarget(url=url, headers=headers, key=Secret(key) if key else NO_KEY)


def _undo_settings(settings: ClientSettings, agent: Agent) -> None:
    record = settings.record
    is_ours = settings.undo()
    if record and record.key_id:
        anyio.run(_revoke_key_alone, record.url, record.key_id)
    since = "" if is_ours else "; later changes in it were kept"
    write_error(f"{settings.file} is as it was before {agent.title} was connected{since}.\n")


async def _revoke_key_alone(url: str, key_id: str) -> None:
    async with HttpTransport(idle=_SECONDS) as http:
        await _revoke_key(http, url, key_id)
