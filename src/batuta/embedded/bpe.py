"""Byte-level BPE: the tokenizer.json of a Hugging Face folder, without its library.

Sennrich et al. 2016 (arXiv:1508.07909) over bytes, as in GPT-2. A tokenizer must have no
normalizer, the pre-tokenizer ByteLevel, alone or after one isolating Split, and special tokens that
match verbatim; others are refused. Post-processor, padding and truncation are ignored, because
nothing is added to a prompt in chat format.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, final

from batuta.errors import ConfigError

_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CATEGORIES = frozenset({"L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "Nd", "Nl", "No"})
_NO_CHARACTER = r"\uffff"
"""The content of a character class that matches no text: U+FFFF is not a character."""
_LAST_ASCII = 0x7F
_LAST_LETTER = 0x3FFFF
"""Unicode has no letters or numbers above plane 3."""
_TOKEN = re.compile(
    r"\\[pP]\{(?P<category>\w+)\}|\\(?P<space>[sS])"
    r"|\\[rntfvdD]|\\[^\w\s]"  # the same in `re`
    r"|(?P<refused>\\.|\[\^?\]|\(\?(?!i?:|[=!>]|<[=!]))"
    r"|(?P<outside>[$^]|\}[+?])|(?P<opened>\[)|(?P<closed>\])|(?P<inside>&&)|.",
    re.DOTALL,
)


@final
class SplitPattern:
    """Splits text into pieces: the matches of a pattern, and the texts between them."""

    def __init__(self, pattern: str) -> None:
        """Compile `pattern` for ASCII texts; the first other text compiles it again.

        Raises:
            ConfigError: the pattern is invalid, or has a construct with another meaning in `re`.
        """
        self._pattern = pattern
        self._ascii = _compile_pattern(pattern, _LAST_ASCII)

    def pieces(self, text: str) -> Iterator[str]:
        """Yield the pieces in order; joined, they are `text`."""
        pattern = self._ascii if text.isascii() else self._full_pattern
        end = 0
        for found in pattern.finditer(text):
            if found.start() > end:
                yield text[end : found.start()]
            if found[0]:
                yield found[0]
            end = found.end()
        if end < len(text):
            yield text[end:]

    @cached_property
    def _full_pattern(self) -> re.Pattern[str]:
        """The pattern for any text, compiled late because looking up all letters takes 40 ms."""
        return _compile_pattern(self._pattern, _LAST_LETTER)


def _compile_pattern(pattern: str, last: int) -> re.Pattern[str]:
    """Compile `pattern` for texts that have no letter or number above code point `last`."""
    try:
        return re.compile("".join(_translate_pattern(pattern, last)))
    except re.error as error:
        raise ConfigError(f"the Split pattern {pattern!r} cannot be used: {error}") from None


def _translate_pattern(pattern: str, last: int) -> Iterator[str]:
    inside = False
    for token in _TOKEN.finditer(pattern):
        if token["refused"] or token["inside" if inside else "outside"]:
            raise _pattern_error(token[0])
        if token["category"] or token["space"]:
            yield _class_text(token, last, inside=inside)
        elif token["opened"] and inside:
            raise _pattern_error("a class within a class")
        else:
            inside = bool(token["opened"]) or (inside and not token["closed"])
            yield token[0]


def _class_text(token: re.Match[str], last: int, *, inside: bool) -> str:
    r"""Return `\s` or `\p{...}` as a character class, or `inside` a class as a part of it."""
    members = _SPACE if token["space"] else _category_ranges(token["category"], last)
    negative = token[0][1].isupper()
    if not inside:
        return f"[^{members}]" if negative else f"[{members}]"
    if negative:
        raise _pattern_error(f"{token[0]} within a class")
    return members


@cache
def _category_ranges(category: str, last: int) -> str:
    """Return the code points of a Unicode category as the content of a character class."""
    if category not in _CATEGORIES:
        raise _pattern_error(rf"\p{{{category}}}")
    letters = category if len(category) > 1 else f"{category}[a-z]"
    runs = re.finditer(f"(?:{letters})+", _category_letters(last))
    ranges = (rf"\U{run.start() // 2:08x}-\U{run.end() // 2 - 1:08x}" for run in runs)
    return "".join(ranges) or _NO_CHARACTER


@cache
def _category_letters(last: int) -> str:
    """Return the categories of all code points up to `last`, two letters each."""
    return "".join(map(unicodedata.category, map(chr, range(last + 1))))


def _pattern_error(what: str) -> ConfigError:
    return ConfigError(f"the Split pattern uses {what}, which Batuta does not read")


_MAX_CACHED_PIECES = 8192
"""Maximum number of pieces whose tokens are cached."""
_MAX_CACHED_LENGTH = 64
"""Maximum characters of a piece whose tokens are cached."""
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""ByteLevel's own pattern."""
_MATCHES_NOTHING = "(?!)"
_UNSUPPORTED_SETTINGS = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
"""Settings of BPE that must be off."""
_MERGED_AWAY = -1
"""Replaces a token that was merged into its left neighbour."""

MergeTable = Mapping[tuple[int, int], tuple[int, int]]
"""Maps two adjacent tokens to the rank of their merge and the resulting token."""


@final
class Tokenizer:
    """Turns text into tokens and back.

    Law: `decode(encode(text)) == text` for text without special tokens and lone surrogates.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Read the content of a tokenizer.json.

        Raises:
            ConfigError: the content is malformed, or the tokenizer is not supported.
        """
        try:
            self._read(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"tokenizer.json is not as tokenizers saves it: {error!r}") from None
        self._cached_merge = lru_cache(_MAX_CACHED_PIECES)(self._merge_piece)

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens)"

    def __len__(self) -> int:
        return self._length

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`; text that spells a special token becomes that token."""
        tokens: list[int] = []
        for part in self._specials.split(text):
            special = self._special.get(part)
            if special is None:
                tokens += self._encode_plain(part)
            else:
                tokens.append(special)
        return tokens

    def min_tokens(self, text: str) -> int:
        """Return a lower bound on the number of tokens of `text`, without tokenizing it."""
        return -(-len(text.encode(errors="replace")) // self._longest)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens` without special tokens; invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of `token`; empty for a special or unknown token."""
        return self._bytes.get(token, b"")

    def _read(self, data: Mapping[str, Any]) -> None:
        _check_supported(data)
        model = data["model"]
        vocabulary: dict[str, int] = model["vocab"]
        self._split = SplitPattern(_split_regex(data["pre_tokenizer"]))
        self._special = {
            added["content"]: _special_token_id(added) for added in data["added_tokens"]
        }
        longest_first = sorted(self._special, key=len, reverse=True)
        self._specials = re.compile(
            f"({'|'.join(map(re.escape, longest_first)) or _MATCHES_NOTHING})"
        )
        self._alphabet = [_byte_token(vocabulary, byte) for byte in range(256)]
        self._merges = _build_merges(model["merges"], vocabulary)
        special = set(self._special.values())
        self._bytes = {
            token: bytes(map(_BYTES.__getitem__, letters))
            for letters, token in vocabulary.items()
            if token not in special
        }
        self._length = max(special.union(self._bytes)) + 1
        written = (content.encode() for content in self._special)
        self._longest = max(map(len, (*self._bytes.values(), *written)))

    def _encode_plain(self, text: str) -> list[int]:
        tokens: list[int] = []
        for piece in self._split.pieces(text):
            merge = self._cached_merge if len(piece) <= _MAX_CACHED_LENGTH else self._merge_piece
            tokens += merge(piece)
        return tokens

    def _merge_piece(self, piece: str) -> list[int]:
        return merge_tokens(
            [self._alphabet[b] for b in piece.encode(errors="replace")], self._merges
        )


def merge_tokens(tokens: Sequence[int], merges: MergeTable) -> list[int]:
    """Return `tokens` after all merges: the lowest rank first, the leftmost of equal ranks."""
    line = [*tokens, _MERGED_AWAY]
    before = list(range(-1, len(tokens)))
    after = list(range(1, len(line) + 1))
    queue = [
        (found[0], left, found[1])
        for left, pair in enumerate(pairwise(tokens))
        if (found := merges.get(pair))
    ]
    heapify(queue)
    while queue:
        _, left, made = heappop(queue)
        right = after[left]
        found = merges.get((line[left], line[right]))
        if found is None or found[1] != made:
            continue  # one of the two was merged with its other neighbour meanwhile
        line[left], line[right] = made, _MERGED_AWAY
        after[left] = after[right]
        before[after[left]] = left
        for at in (before[left], left):
            if at >= 0 and (found := merges.get((line[at], line[after[at]]))):
                heappush(queue, (found[0], at, found[1]))
    return [token for token in line if token != _MERGED_AWAY]


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: the byte that each printable character stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    shown = dict(zip(map(chr, printable), printable, strict=True))
    return shown | {chr(256 + at): byte for at, byte in enumerate(rest)}


_BYTES = _byte_alphabet()
_LETTERS = {byte: letter for letter, byte in _BYTES.items()}


def _byte_token(vocabulary: Mapping[str, int], byte: int) -> int:
    token = vocabulary.get(_LETTERS[byte])
    if token is None:
        raise ConfigError(
            f"tokenizer.json has no token for the byte {byte:#04x}: train it with the initial "
            "alphabet of ByteLevel"
        )
    return token


def _build_merges(pairs: Iterable[tuple[str, str]], vocabulary: Mapping[str, int]) -> MergeTable:
    return {
        (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
        for rank, (left, right) in enumerate(pairs)
    }


def _check_supported(data: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a setting that changes the tokens is not supported."""
    model = data["model"]
    if data["normalizer"] is not None:
        raise _unsupported_error(f"the normalizer {data['normalizer']['type']}")
    if data["decoder"]["type"] != "ByteLevel":
        raise _unsupported_error(f"the decoder {data['decoder']['type']}")
    if model["type"] != "BPE":
        raise _unsupported_error(f"the model {model['type']}")
    for name in _UNSUPPORTED_SETTINGS:
        if model.get(name):
            raise _unsupported_error(f"{name} {model[name]!r}")


def _special_token_id(added: Mapping[str, Any]) -> int:
    """Return the id of an added token; raise `ConfigError` if it does not match verbatim."""
    if not added["special"]:
        raise _unsupported_error(f"the added token {added['content']!r}, which is not special")
    for name in ("single_word", "lstrip", "rstrip", "normalized"):
        if added[name]:
            raise _unsupported_error(f"the added token {added['content']!r} with {name}")
    return added["id"]


def _split_regex(pre_tokenizer: Mapping[str, Any]) -> str:
    """Return the pattern that splits text into pieces; raise `ConfigError` if it is unsupported."""
    parts: list[Any] = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [part["type"] for part in parts]
    split, level = parts[0], parts[-1]
    if kinds not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise _unsupported_error(f"the pre-tokenizer {' then '.join(kinds)}")
    if level["add_prefix_space"]:
        raise _unsupported_error("add_prefix_space")
    if len(parts) == 1:
        return _GPT2_PATTERN if level["use_regex"] else _MATCHES_NOTHING
    if level["use_regex"]:
        raise _unsupported_error("a Split and use_regex")
    if split["behavior"] != "Isolated" or split["invert"]:
        raise _unsupported_error(f"a Split that is not isolating ({split['behavior']})")
    return split["pattern"]["Regex"]


def _unsupported_error(what: str) -> ConfigError:
    return ConfigError(f"tokenizer.json has {what}, which Batuta does not read")
