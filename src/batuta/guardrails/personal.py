"""Personal data in a text, found by its form and, if there is one, a valid check digit.

The library for telephone numbers takes time that grows with the square of the adjacent digits, so
a text with many is checked in a process that is ended at a time limit, or when its caller goes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, final

import regex

from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.guardrails.disguises import find_matches, see_through_disguises
from batuta.guardrails.guardrail import MAX_INLINE_CHARACTERS, Detector, TextSpan

_EMAIL = regex.compile(
    r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}\b"
)
_CARD = regex.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w.]\d)")
_IBAN = regex.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}\b")


_NUMERAL = regex.compile(r"[\d+([]")
_MAX_INLINE_NUMERALS = 80
"""The most digits of a text times countries that are checked inline, which takes milliseconds."""


@final
class PersonalDetector:
    """Finds personal data: inline if that is quick, else in a process that can be ended."""

    def __init__(self, countries: Sequence[str]) -> None:
        """Load what finds it.

        Raises:
            ConfigError: the extra is not installed.
        """
        self._countries = tuple(country.upper() for country in countries)
        self._find = _build_detector(self._countries)

    def __call__(self, text: str) -> Iterator[TextSpan]:
        """Find them here, however long it takes."""
        yield from self._find(text)

    def process_call(self, text: str) -> tuple[Any, ...] | None:
        """Return the function to call in another process and its arguments; None if it is quick."""
        if len(text) <= MAX_INLINE_CHARACTERS:
            numerals = len(_NUMERAL.findall(text))
            if numerals * max(1, len(self._countries)) <= _MAX_INLINE_NUMERALS:
                return None
        return find_personal, text, list(self._countries)


def find_personal(text: str, countries: Sequence[str]) -> list[TextSpan]:
    """Return the spans of personal data in the text."""
    return list(_build_detector(countries)(text))


def _build_detector(countries: Sequence[str]) -> Detector:
    iban, luhn = _import_extra("stdnum.iban"), _import_extra("stdnum.luhn")
    telephones = _import_extra("phonenumbers")
    regions = countries or [None]

    def find(text: str) -> Iterator[TextSpan]:
        yield from (match.span() for match in find_matches(_EMAIL, text))
        for match in find_matches(_CARD, text):
            if luhn.is_valid(re.sub(r"\D", "", match[0])):
                yield match.span()
        for match in find_matches(_IBAN, text):
            if iban.is_valid(match[0]):
                yield match.span()
        for region in regions:
            for found in telephones.PhoneNumberMatcher(text, region):
                yield found.start, found.end

    return see_through_disguises(find)


def _import_extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"a policy of kind 'personal' needs the extra: {install_hint('policies')}"
        ) from None
