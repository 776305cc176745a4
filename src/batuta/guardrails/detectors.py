"""Detectors of guardrails: each is a pure function from a text to spans of the text.

Keys are found by the prefixes that their issuers publish; design/0005-policies.md says why no
library does it. Cards and bank accounts are checked by python-stdnum and telephone numbers by
phonenumbers, so that not every number of sixteen digits counts as a card. phonenumbers takes time
that is quadratic in the length of runs of digits, so a text that is long or has many digits is
checked in a process, which is killed at a time limit or when the call is cancelled.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

import regex

from batuta.core.suggestions import suggest_names
from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.guardrails.disguises import find_matches, see_through_disguises
from batuta.guardrails.guardrail import MAX_INLINE_CHARACTERS, Detector, TextSpan
from batuta.schemas import JsonValidator
from batuta.schemas.checker import find_schema_fault

_EMAIL = regex.compile(
    r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}\b"
)
_CARD = regex.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?!\d|[\w.]\d)")
_PRINTED_CARD = regex.compile(
    r"(?<![\w.])(?:\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19})"
    r"(?!\d|[\w.]\d)"
)
"""A number in the groups of a printed card, also if more digits follow, such as an expiry date."""
_IBAN = regex.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}\b")
_GROUP_END = regex.compile(r" |$")
_IBAN_DIGITS = str.maketrans(
    {" ": "", **{chr(55 + number): str(number) for number in range(10, 36)}}
)
_NUMERAL = regex.compile(r"[\d+([]")
_MAX_INLINE_NUMERALS = 80
"""Maximum number of signs of telephone numbers (digits, + and brackets), times countries, in a text
that is checked in this process. Such a check takes milliseconds."""


@final
class PersonalDetector:
    """Finds personal data: in this process if that is quick, else in one that can be killed."""

    def __init__(self, countries: Sequence[str]) -> None:
        """Import the libraries.

        Args:
            countries: two-letter codes of the countries whose telephone numbers are found without a
                country code; empty: only numbers with a country code are found.

        Raises:
            ConfigError: the extra is not installed, or a code is unknown.
        """
        self._countries = tuple(country.upper() for country in countries)
        known = _import_extra("phonenumbers").SUPPORTED_REGIONS
        if unknown := [country for country in self._countries if country not in known]:
            raise ConfigError(
                f"countries: {', '.join(unknown)} is no two-letter code of a country, such as GB"
            )
        self._find = _build_detector(self._countries)

    def __call__(self, text: str) -> Iterator[TextSpan]:
        """Find personal data in this process, however long that takes."""
        yield from self._find(text)

    def process_call(self, text: str) -> tuple[Any, ...] | None:
        """Return the function and arguments for another process; None if none is needed."""
        if len(text) <= MAX_INLINE_CHARACTERS:
            numerals = len(_NUMERAL.findall(text))
            if numerals * max(1, len(self._countries)) <= _MAX_INLINE_NUMERALS:
                return None
        return find_personal, text, list(self._countries)


def find_personal(text: str, countries: Sequence[str]) -> list[TextSpan]:
    """Return the spans of personal data in the text."""
    return list(_build_detector(countries)(text))


def _build_detector(countries: Sequence[str]) -> Detector:
    luhn, telephones = _import_extra("stdnum.luhn"), _import_extra("phonenumbers")
    regions = countries or [None]

    def find(text: str) -> Iterator[TextSpan]:
        yield from (match.span() for match in find_matches(_EMAIL, text))
        numbers = chain(find_matches(_CARD, text), find_matches(_PRINTED_CARD, text))
        yield from {one.span() for one in numbers if luhn.is_valid(re.sub(r"\D", "", one[0]))}
        yield from _find_accounts(text)
        for region in regions:
            for found in telephones.PhoneNumberMatcher(text, region):
                yield found.start, found.end

    return see_through_disguises(find)


def _find_accounts(text: str) -> Iterator[TextSpan]:
    """Yield the spans of bank accounts, which words in capitals or other accounts may follow."""
    iban, at = _import_extra("stdnum.iban"), 0
    while (match := _IBAN.search(text, at, concurrent=True)) is not None:
        start, at = match.span()
        ends = (start + end.start() for end in _GROUP_END.finditer(match[0]))
        end = next((end for end in ends if _is_account(iban, text[start:end])), None)
        if end is not None:
            yield start, end
            at = end


def _is_account(iban: Any, number: str) -> bool:
    digits = (number[4:] + number[:4]).translate(_IBAN_DIGITS)
    return int(digits) % 97 == 1 and iban.is_valid(number)  # the quick check first


def _import_extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"a policy of kind 'personal' needs the extra: {install_hint('policies')}"
        ) from None


_SECRETS = regex.compile(
    r"""-----BEGIN[A-Z ]{0,40}PRIVATE\ KEY-----
       (?:.{0,20000}?-----END[A-Z ]{0,40}PRIVATE\ KEY-----|.{0,20000})
    |\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b                        # Amazon
    |\bAIza[A-Za-z0-9_-]{35}                                        # Google
    |\bya29\.[A-Za-z0-9_-]{20,}                                     # Google, short-lived
    |\bsk-[A-Za-z0-9_-]{20,}                                        # OpenAI, Anthropic, OpenRouter
    |\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}                  # Stripe
    |\bwhsec_[A-Za-z0-9]{24,}                                       # Stripe, webhooks
    |\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}    # GitHub
    |\bglpat-[A-Za-z0-9_-]{20,}                                     # GitLab
    |\bxox[abeoprs]-[A-Za-z0-9-]{10,}                               # Slack
    |\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}         # Slack, webhooks
    |\bhf_[A-Za-z0-9]{30,}|\bgsk_[A-Za-z0-9]{40,}|\bxai-[A-Za-z0-9]{40,}  # Hugging Face, Groq, xAI
    |\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{50,}                # registries
    |\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}                   # SendGrid
    |\bdop_v1_[a-f0-9]{64}                                          # DigitalOcean
    |\b(?:bk_[A-Za-z0-9]{6,}|batuta_[0-9a-f]{12})_[A-Za-z0-9_-]{20,}  # Batuta
    |\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}   # JSON web tokens
    |(?<=://)[^\s/:@]{1,256}:[^\s/:@]{1,256}(?=@)                   # a password in a URL
    """,
    regex.VERBOSE | regex.DOTALL,
)
_INJECTION = regex.compile(
    r"""<\|[a-z0-9_]{1,40}\|>                                       # marks of chat templates
    |\[/?INST\]|<<\s*/?SYS\s*>>|<\s*+(?:start|end)_of_turn\s*+>|<\s*+(?:/\s*+)?system(?:_prompt)?\s*+>
    |\b(?:ignore|disregard|forget|override)\s+(?:all\s+|any\s+)?(?:of\s+)?(?:the\s+|your\s+|these\s+|my\s+)?
       (?:previous|prior|above|earlier|preceding|other)\s+(?:instruction|prompt|message|rule|direction|command)s?
    |\b(?:reveal|print|repeat|show|output)\s+(?:me\s+)?
       (?:your\s+(?:hidden\s+|initial\s+|system\s+)?instructions
       |(?:your|the)\s+(?:hidden\s+|initial\s+)?system\s+prompt)\b
    |\bnew\s+system\s+(?:prompt|instructions?|message)\b
    """,
    regex.VERBOSE | regex.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class DetectorOptions:
    """The settings of a policy that its detector uses."""

    max_characters: int | None = None
    """Maximum number of characters of a text, for the kind `size`; None: not set."""
    countries: tuple[str, ...] = ()
    """The countries of a `PersonalDetector`."""
    schema: Mapping[str, Any] | None = None
    """The JSON schema that texts must fit, for the kind `schema`; None: not set."""


def build_detector(kind: str, options: DetectorOptions) -> Detector:
    """Return the detector of that kind.

    Raises:
        ConfigError: there is no such kind, an option is missing or invalid, or an extra is not
            installed.
    """
    if kind not in DETECTORS:
        raise ConfigError(f"there is no policy of kind {kind!r}; {suggest_names(kind, DETECTORS)}")
    return DETECTORS[kind](options)


def _pattern_detector(pattern: regex.Pattern[str]) -> Detector:
    return see_through_disguises(
        lambda text: (match.span() for match in find_matches(pattern, text))
    )


def _size_detector(options: DetectorOptions) -> Detector:
    most = options.max_characters
    if most is None:
        raise ConfigError("a policy of kind 'size' needs max_characters")

    def find(text: str) -> Iterable[TextSpan]:
        return [(most, len(text))] if len(text) > most else []

    return find


def _schema_detector(options: DetectorOptions) -> Detector:
    if options.schema is None:
        raise ConfigError("a policy of kind 'schema' needs a schema")
    try:
        validator = JsonValidator(options.schema)
    except ValueError as error:
        raise ConfigError(f"the schema of a policy cannot be used: {error}") from None
    fault = find_schema_fault(dict(options.schema))
    if fault is not None:
        raise ConfigError(f"the schema of a policy cannot be used: {fault}")

    def find(text: str) -> Iterable[TextSpan]:
        return [(0, len(text))] if validator.find_fault_now(text) else []

    return find


DETECTORS: Mapping[str, Callable[[DetectorOptions], Detector]] = {
    "secrets": lambda _: _pattern_detector(_SECRETS),
    "injection": lambda _: _pattern_detector(_INJECTION),
    "personal": lambda options: PersonalDetector(options.countries),
    "size": _size_detector,
    "schema": _schema_detector,
}
