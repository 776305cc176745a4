"""A key that does not show itself."""

from __future__ import annotations

import re
from typing import final

from batuta.core.redaction import HIDDEN_KEY, hide_keys
from batuta.errors import ConfigError

_SENDABLE = re.compile(r"[!-~]*")


@final
class Secret:
    """A provider's key: `str`, `repr` and `format` give `***`; only `reveal` gives the key."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keeps `value` without the white space around it.

        Raises:
            ConfigError: the key could not be sent in a header.
        """
        self._value = value.strip()
        if not _SENDABLE.fullmatch(self._value):
            raise ConfigError("a provider's key holds a space, a line end or a non-ASCII character")

    def reveal(self) -> str:
        """The key itself; for the header of a request and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN_KEY

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))


NO_KEY = Secret("")


def redact_secrets(text: str, key: Secret = NO_KEY) -> str:
    """`text` without `key`, without anything that looks like a key, and without URL paths."""
    if key:
        text = text.replace(key.reveal(), HIDDEN_KEY)
    return hide_keys(text)
