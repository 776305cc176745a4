"""Byte-level BPE: the tokenizer.json of a Hugging Face folder, without its library.

Sennrich et al. 2016 (arXiv:1508.07909) over bytes, as in GPT-2. Reads what such a tokenizer needs
and refuses the rest: no normalizer; pre-tokenizer ByteLevel, alone or after one isolating Split;
special tokens that are taken verbatim. Post-processor, padding and truncation are not read: a
prompt in chat format gets nothing added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, final

from batuta.embedded.split_pattern import SplitPattern
from batuta.errors import ConfigError

_MAX_CACHED_PIECES = 8192
"""Pieces whose tokens are kept."""
_MAX_CACHED_LENGTH = 64
"""Characters above which a piece is not worth keeping."""
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
"""Stands where a token was that its left neighbour has swallowed."""

MergeTable = Mapping[tuple[int, int], tuple[int, int]]
"""Two neighbours → the rank of their merge and the token it makes."""


@final
class Tokenizer:
    """Text to tokens and back. Law: without special tokens, `decode(encode(text)) == text`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Reads the content of a tokenizer.json.

        Raises:
            ConfigError: it is no byte-level BPE, or asks for something that is not read here.
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
        """The tokens of `text`; a special token that is written out is read as such."""
        tokens: list[int] = []
        for part in self._specials.split(text):
            special = self._special.get(part)
            if special is None:
                tokens += self._encode_plain(part)
            else:
                tokens.append(special)
        return tokens

    def min_tokens(self, text: str) -> int:
        """Tokens that `text` has at least; quick for a text of any length."""
        return -(-len(text.encode(errors="replace")) // self._longest)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`, special ones left out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of `token`; none for a special or unknown one."""
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
            tokens += (
                self._cached_merge(piece)
                if len(piece) <= _MAX_CACHED_LENGTH
                else self._merge_piece(piece)
            )
        return tokens

    def _merge_piece(self, piece: str) -> list[int]:
        return merge_tokens(
            [self._alphabet[b] for b in piece.encode(errors="replace")], self._merges
        )


def merge_tokens(tokens: Sequence[int], merges: MergeTable) -> list[int]:
    """`tokens` after all merges: the lowest rank first, and of equal ones the leftmost."""
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
            continue  # one of the two has been merged with its other neighbour since
        line[left], line[right] = made, _MERGED_AWAY
        after[left] = after[right]
        before[after[left]] = left
        for at in (before[left], left):
            if at >= 0 and (found := merges.get((line[at], line[after[at]]))):
                heappush(queue, (found[0], at, found[1]))
    return [token for token in line if token != _MERGED_AWAY]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: each byte as a printable character."""
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
    """Refuses what changes the tokens and is not read here."""
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
    """The id of an added token."""
    if not added["special"]:
        raise _unsupported_error(f"the added token {added['content']!r}, which is not special")
    for name in ("single_word", "lstrip", "rstrip", "normalized"):
        if added[name]:
            raise _unsupported_error(f"the added token {added['content']!r} with {name}")
    return added["id"]


def _split_regex(pre_tokenizer: Mapping[str, Any]) -> str:
    """Return the pattern that cuts text into pieces."""
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
