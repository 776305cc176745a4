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

from batuta.embedded.pattern import Split
from batuta.errors import ConfigError

_REMEMBERED = 8192
"""Pieces whose tokens are kept."""
_LONG = 64
"""Characters above which a piece is not worth keeping."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""ByteLevel's own pattern."""
_NEVER = "(?!)"
_UNREAD = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
"""Settings of BPE that must be off."""
_GONE = -1
"""Stands where a token was that its left neighbour has swallowed."""

Merges = Mapping[tuple[int, int], tuple[int, int]]
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
        self._known = lru_cache(_REMEMBERED)(self._merged)

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
                tokens += self._plain(part)
            else:
                tokens.append(special)
        return tokens

    def least(self, text: str) -> int:
        """Tokens that `text` has at least; quick for a text of any length."""
        return -(-len(text.encode(errors="replace")) // self._longest)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`, special ones left out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        """What `token` stands for; nothing, for a special or unknown one."""
        return self._bytes.get(token, b"")

    def _read(self, data: Mapping[str, Any]) -> None:
        _check(data)
        model = data["model"]
        vocabulary: dict[str, int] = model["vocab"]
        self._split = Split(_pattern(data["pre_tokenizer"]))
        self._special = {added["content"]: _special(added) for added in data["added_tokens"]}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(map(re.escape, longest_first)) or _NEVER})")
        self._alphabet = [_letter(vocabulary, byte) for byte in range(256)]
        self._merges = _merges(model["merges"], vocabulary)
        special = set(self._special.values())
        self._bytes = {
            token: bytes(map(_BYTES.__getitem__, letters))
            for letters, token in vocabulary.items()
            if token not in special
        }
        self._length = max(special.union(self._bytes)) + 1
        written = (content.encode() for content in self._special)
        self._longest = max(map(len, (*self._bytes.values(), *written)))

    def _plain(self, text: str) -> list[int]:
        tokens: list[int] = []
        for piece in self._split.pieces(text):
            tokens += self._known(piece) if len(piece) <= _LONG else self._merged(piece)
        return tokens

    def _merged(self, piece: str) -> list[int]:
        return merge([self._alphabet[b] for b in piece.encode(errors="replace")], self._merges)


def merge(tokens: Sequence[int], merges: Merges) -> list[int]:
    """`tokens` after all merges: the lowest rank first, and of equal ones the leftmost."""
    line = [*tokens, _GONE]
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
        line[left], line[right] = made, _GONE
        after[left] = after[right]
        before[after[left]] = left
        for at in (before[left], left):
            if at >= 0 and (found := merges.get((line[at], line[after[at]]))):
                heappush(queue, (found[0], at, found[1]))
    return [token for token in line if token != _GONE]


def _letters() -> dict[str, int]:
    """GPT-2's alphabet: each byte as a printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    shown = dict(zip(map(chr, printable), printable, strict=True))
    return shown | {chr(256 + at): byte for at, byte in enumerate(rest)}


_BYTES = _letters()
_LETTERS = {byte: letter for letter, byte in _BYTES.items()}


def _letter(vocabulary: Mapping[str, int], byte: int) -> int:
    token = vocabulary.get(_LETTERS[byte])
    if token is None:
        raise ConfigError(
            f"tokenizer.json has no token for the byte {byte:#04x}: train it with the initial "
            "alphabet of ByteLevel"
        )
    return token


def _merges(pairs: Iterable[tuple[str, str]], vocabulary: Mapping[str, int]) -> Merges:
    return {
        (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
        for rank, (left, right) in enumerate(pairs)
    }


def _check(data: Mapping[str, Any]) -> None:
    """Refuses what changes the tokens and is not read here."""
    model = data["model"]
    if data["normalizer"] is not None:
        raise _refusal(f"the normalizer {data['normalizer']['type']}")
    if data["decoder"]["type"] != "ByteLevel":
        raise _refusal(f"the decoder {data['decoder']['type']}")
    if model["type"] != "BPE":
        raise _refusal(f"the model {model['type']}")
    for name in _UNREAD:
        if model.get(name):
            raise _refusal(f"{name} {model[name]!r}")


def _special(added: Mapping[str, Any]) -> int:
    """The id of an added token."""
    if not added["special"]:
        raise _refusal(f"the added token {added['content']!r}, which is not special")
    for name in ("single_word", "lstrip", "rstrip", "normalized"):
        if added[name]:
            raise _refusal(f"the added token {added['content']!r} with {name}")
    return added["id"]


def _pattern(pre_tokenizer: Mapping[str, Any]) -> str:
    """Where text is cut into pieces."""
    parts: list[Any] = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [part["type"] for part in parts]
    split, level = parts[0], parts[-1]
    if kinds not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise _refusal(f"the pre-tokenizer {' then '.join(kinds)}")
    if level["add_prefix_space"]:
        raise _refusal("add_prefix_space")
    if len(parts) == 1:
        return _GPT2 if level["use_regex"] else _NEVER
    if level["use_regex"]:
        raise _refusal("a Split and use_regex")
    if split["behavior"] != "Isolated" or split["invert"]:
        raise _refusal(f"a Split that is not isolating ({split['behavior']})")
    return split["pattern"]["Regex"]


def _refusal(what: str) -> ConfigError:
    return ConfigError(f"tokenizer.json has {what}, which Batuta does not read")
