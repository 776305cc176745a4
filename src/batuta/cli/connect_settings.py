"""Add the settings that point a coding agent at Batuta, and remove them again.

Formats: Claude Code 2.1.197, Codex 0.171.0, opencode 1.18.33 and aider 0.86.2. JSON settings are
parsed, changed and rewritten. In TOML and YAML, lines are added between two markers, and the lines
that they replace become comments: comments and order survive, and all can be undone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from batuta.config.pool_file import quote_text
from batuta.errors import ConfigError

Json = dict[str, Any]
KeyPath = tuple[str, ...]
"""The keys that lead to a setting in nested objects."""
NO_KEY_TEXT = "batuta"
"""Sent as the key to a server that needs none, by agents that do not start without a key."""
_BEGIN, _END = "# >>> batuta connect >>>\n", "# <<< batuta connect <<<\n"
_KEPT = "# batuta connect keeps: "
_ADD_YOURSELF = "; run with --print and add the printed lines yourself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The server's address, and the model and key that a coding agent uses there."""

    url: str
    """The server's address, without `/v1`."""
    model: str
    key: str = ""
    """Empty if the server needs none."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent that `batuta connect` sets up."""

    title: str
    start: str
    """The command that starts it."""
    route: str
    """The path of the API that it calls."""
    _: KW_ONLY
    find_file: Callable[[Mapping[str, str], Path], Path]
    """Returns the path of its settings, given the environment and the home folder."""
    connect: Callable[[str, Connection], str]
    """Returns the settings with Batuta's added; raises `ConfigError` if that is not possible."""
    disconnect: Callable[[str, str], str]
    """Returns the settings with Batuta's removed, given the current and the original settings;
    raises `ConfigError` if these cannot be read."""


def _read_json(text: str) -> Json:
    """Parse the settings, which must be a JSON object."""
    try:
        found: Any = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the file is not JSON: {error}{_ADD_YOURSELF}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"the file must hold a JSON object{_ADD_YOURSELF}")
    return cast("Json", found)


def _set_json(text: str, values: Mapping[KeyPath, Any]) -> str:
    settings = _read_json(text)
    for path, value in values.items():
        inner = settings
        for name in path[:-1]:
            found = inner.setdefault(name, {})
            if not isinstance(found, dict):
                raise ConfigError(f"`{name}` must be an object{_ADD_YOURSELF}")
            inner = cast("Json", found)
        inner[path[-1]] = value
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _unset_json(text: str, before: str, paths: Iterable[KeyPath]) -> str:
    settings, old = _read_json(text), _read_json(before)
    for path in paths:
        _restore_setting(settings, old, path)
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n" if settings else ""


def _restore_setting(settings: Json, old: Json, path: KeyPath) -> None:
    """Restore the old value of a setting.

    A setting without an old value is removed, with the new objects that this leaves empty.
    """
    name, *rest = path
    if not rest:
        settings.pop(name, None)
        if name in old:
            settings[name] = old[name]
        return
    inner, known = settings.get(name), old.get(name)
    if isinstance(inner, dict):
        past = cast("Json", known) if isinstance(known, dict) else {}
        _restore_setting(cast("Json", inner), past, tuple(rest))
        if not inner and name not in old:
            del settings[name]


def _add_lines(
    text: str, replaced: re.Pattern[str], first: Iterable[str], last: Iterable[str]
) -> str:
    """Add marked lines around the settings; lines of replaced settings become comments.

    Args:
        text: the settings.
        replaced: matches the line of a replaced setting; used only before the first TOML table.
        first: lines to add before the settings.
        last: lines to add after the settings.
    """
    kept: list[str] = []
    at_top = True
    for line in text.splitlines(keepends=True):
        at_top = at_top and not line.lstrip().startswith("[")
        kept.append(_KEPT + line if at_top and replaced.match(line) else line)
    body = "".join(kept)
    line_end = "" if not body or body.endswith("\n") else "\n"
    return f"{_mark_lines(first)}{body}{line_end}{_mark_lines(last)}"


def _mark_lines(lines: Iterable[str]) -> str:
    inner = "".join(f"{line}\n" for line in lines)
    return f"{_BEGIN}{inner}{_END}" if inner else ""


def _drop_lines(text: str, _: str) -> str:
    """Remove the marked lines and restore the settings that they replaced."""
    kept: list[str] = []
    is_ours = False
    for line in text.splitlines(keepends=True):
        if line == _BEGIN:
            is_ours = True
        elif line == _END:
            is_ours = False
        elif not is_ours:
            kept.append(line.removeprefix(_KEPT))
    return "".join(kept)


_CLAUDE_KEYS: tuple[KeyPath, ...] = (
    ("model",),
    ("env", "ANTHROPIC_BASE_URL"),
    ("env", "ANTHROPIC_AUTH_TOKEN"),
)


def _claude_file(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def _connect_claude(text: str, to: Connection) -> str:
    values = (to.model, to.url, to.key or NO_KEY_TEXT)
    return _set_json(text, dict(zip(_CLAUDE_KEYS, values, strict=True)))


_CODEX_MODEL = re.compile(r"""^[ \t]*["']?(?:model|model_provider)["']?[ \t]*=""")


def _codex_file(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("CODEX_HOME") or home / ".codex") / "config.toml"


def _connect_codex(text: str, to: Connection) -> str:
    before = _read_toml(text)
    provider = {"name": "Batuta", "base_url": f"{to.url}/v1", "wire_api": "responses"}
    if to.key:
        provider["experimental_bearer_token"] = to.key
    first = {"model": to.model, "model_provider": "batuta"}
    table = ["[model_providers.batuta]", *_toml_lines(provider)]
    changed = _add_lines(text, _CODEX_MODEL, _toml_lines(first), table)
    found = before.get("model_providers", {})
    providers = cast("Json", found) if isinstance(found, dict) else {"batuta": found}
    if "batuta" in providers:
        raise ConfigError(f"`model_providers` already has an entry `batuta`{_ADD_YOURSELF}")
    expected: Json = {**before, **first, "model_providers": {**providers, "batuta": provider}}
    try:
        is_as_expected = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_as_expected = False
    if not is_as_expected:
        raise ConfigError(f"the file cannot be changed safely{_ADD_YOURSELF}")
    return changed


def _read_toml(text: str) -> Json:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the file is not TOML: {error}{_ADD_YOURSELF}") from None


def _toml_lines(values: Mapping[str, str]) -> list[str]:
    return [f"{name} = {quote_text(value)}" for name, value in values.items()]


_OPENCODE_KEYS: tuple[KeyPath, ...] = (("model",), ("small_model",), ("provider", "batuta"))


def _opencode_file(environ: Mapping[str, str], home: Path) -> Path:
    folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    with_comments = folder / "opencode.jsonc"  # opencode reads this file last, so it has precedence
    return with_comments if with_comments.exists() else folder / "opencode.json"


def _connect_opencode(text: str, to: Connection) -> str:
    options = {"baseURL": f"{to.url}/v1", "apiKey": to.key or NO_KEY_TEXT}
    models = {name: {"name": name} for name in (to.model, "batuta-mini")}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Batuta",
        "options": options,
        "models": models,
    }
    values = (f"batuta/{to.model}", "batuta/batuta-mini", provider)
    return _set_json(text, dict(zip(_OPENCODE_KEYS, values, strict=True)))


_AIDER_NAMES = "model|weak-model|openai-api-base|openai-api-key|show-model-warnings"
_AIDER_SETTING = re.compile(rf"(?:{_AIDER_NAMES})\s*:")
_YAML_LINE = re.compile(r"(?:\s*(?:#.*)?|\s+\S.*|-\s.*|---.*|[\w-]+\s*:(?:\s.*)?)")


def _aider_file(_: Mapping[str, str], home: Path) -> Path:
    return home / ".aider.conf.yml"


def _connect_aider(text: str, to: Connection) -> str:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not _YAML_LINE.fullmatch(line):
            raise ConfigError(f"line {number + 1} is not an aider setting{_ADD_YOURSELF}")
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if _AIDER_SETTING.match(line) and re.match(r"\s+\S|-\s", below):
            name = line.partition(":")[0]
            raise ConfigError(f"`{name}` spans several lines{_ADD_YOURSELF}")
    values = {
        "model": f"openai/{to.model}",
        "weak-model": "openai/batuta-mini",
        "openai-api-base": f"{to.url}/v1",
        "openai-api-key": to.key or NO_KEY_TEXT,
    }
    own = [f"{name}: {quote_text(value)}" for name, value in values.items()]
    return _add_lines(text, _AIDER_SETTING, (), [*own, "show-model-warnings: false"])


AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        "Claude Code", "claude", "/v1/messages",
        find_file=_claude_file, connect=_connect_claude,
        disconnect=partial(_unset_json, paths=_CLAUDE_KEYS),
    ),
    "codex": Agent(
        "Codex", "codex", "/v1/responses",
        find_file=_codex_file, connect=_connect_codex, disconnect=_drop_lines,
    ),
    "opencode": Agent(
        "opencode", "opencode", "/v1/chat/completions",
        find_file=_opencode_file, connect=_connect_opencode,
        disconnect=partial(_unset_json, paths=_OPENCODE_KEYS),
    ),
    "aider": Agent(
        "aider", "aider", "/v1/chat/completions",
        find_file=_aider_file, connect=_connect_aider, disconnect=_drop_lines,
    ),
}  # fmt: skip
"""The coding agents, by their names on the command line."""


def question_body(route: str, model: str) -> Json:
    """Return the body of a small test request to that route, with reasoning turned off."""
    asked = [{"role": "user", "content": "Say OK."}]
    if route == "/v1/messages":
        return {
            "model": model,
            "max_tokens": 64,
            "messages": asked,
            "thinking": {"type": "disabled"},
        }
    if route == "/v1/responses":
        return {"model": model, "input": asked, "store": False, "reasoning": {"effort": "none"}}
    return {"model": model, "messages": asked, "reasoning_effort": "none"}
