"""The tokenizer beside the library that defines it."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.embedded import Tokenizer
from batuta.embedded.bpe import SplitPattern, merge_tokens
from batuta.errors import ConfigError
from embedded import making

LIBRARY = {name: making.tokenizer(name) for name in making.PIECES}
OURS = {name: Tokenizer(json.loads(made.to_str())) for name, made in LIBRARY.items()}
# Code points that Python's Unicode does not know yet may be letters in the library's.
known = st.characters(codec="utf-8", exclude_categories=["Cs", "Cn"])
texts = st.one_of(
    st.text(known),
    st.text("aA eE1 2'\n\r\t\x1c\x85\u3000.,[]\"=_-ſİé"),
    st.text(st.sampled_from("".join(making.TEXTS))),
    st.lists(st.sampled_from([*making.TEXTS, *making.PIECES, "'ll", " = [", "12", "aaaa"])).map(
        "".join
    ),
)
marked = st.lists(st.one_of(texts, st.sampled_from([*making.SPECIAL, "<|use", "r|>"]))).map("".join)
every = pytest.mark.parametrize("name", LIBRARY)


@every
@given(text=marked)
@settings(max_examples=settings().max_examples * 150 // 100, deadline=None)
def test_encodes_as_the_library_does(name, text):
    assert OURS[name].encode(text) == LIBRARY[name].encode(text, add_special_tokens=False).ids


@every
@given(text=texts)
@settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
def test_decoding_gives_the_text_back(name, text):
    tokens = OURS[name].encode(text)
    assert OURS[name].decode(tokens) == text
    assert OURS[name].min_tokens(text) <= len(tokens)


@given(tokens=st.lists(st.integers(0, 599)))
@settings(max_examples=settings().max_examples * 150 // 100, deadline=None)
def test_decodes_any_tokens_as_the_library_does(tokens):
    assert OURS["frames"].decode(tokens) == LIBRARY["frames"].decode(tokens)


@every
def test_every_letter_and_number_is_known_as_such(name):
    text = " ".join(chr(code) for code in range(0x20000) if chr(code).isalnum())
    assert OURS[name].encode(text) == LIBRARY[name].encode(text).ids


def test_a_text_of_special_tokens_alone_has_no_bytes():
    ours = OURS["frames"]
    assert ours.decode(ours.encode("".join(making.SPECIAL))) == ""
    assert ours.min_tokens("<|assistant|>" * 10) <= 10
    assert ours.token_bytes(10**6) == b""


@pytest.mark.parametrize("letter", ["a", "ab", "Ж"])
def test_one_long_word_costs_no_quadratic_time(letter):
    text = letter * 20_000
    start = time.process_time()
    tokens = OURS["gpt2"].encode(text)
    assert time.process_time() - start < 8
    assert tokens == LIBRARY["gpt2"].encode(text).ids


def test_merges_go_by_rank_then_from_the_left():
    merges = {(1, 1): (1, 2), (2, 1): (0, 3)}
    assert merge_tokens([1, 1, 1, 1, 1], merges) == [3, 2]
    assert merge_tokens([1], merges) == [1]
    assert merge_tokens([], merges) == []


def test_lone_surrogates_do_not_stop_it():
    assert OURS["frames"].decode(OURS["frames"].encode("a\ud800b")) == "a?b"


def changed(path, value):
    """The content of a tokenizer.json in which one field is another."""
    data = json.loads(LIBRARY["frames"].to_str())
    *way, last = path
    place = data
    for step in way:
        place = place[step]
    place[last] = value
    return data


REFUSED = {
    "NFC": (("normalizer",), {"type": "NFC"}),
    "Digits": (("pre_tokenizer", "pretokenizers", 0, "type"), "Digits"),
    "Whitespace": (("pre_tokenizer",), {"type": "Whitespace"}),
    "add_prefix_space": (("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), True),
    "use_regex": (("pre_tokenizer", "pretokenizers", 1, "use_regex"), True),
    "Removed": (("pre_tokenizer", "pretokenizers", 0, "behavior"), "Removed"),
    "isolating": (("pre_tokenizer", "pretokenizers", 0, "invert"), True),
    "Regex": (("pre_tokenizer", "pretokenizers", 0, "pattern"), {"String": " "}),
    "WordPiece": (("model", "type"), "WordPiece"),
    "byte_fallback": (("model", "byte_fallback"), True),
    "ignore_merges": (("model", "ignore_merges"), True),
    "dropout": (("model", "dropout"), 0.1),
    "end_of_word_suffix": (("model", "end_of_word_suffix"), "</w>"),
    "Metaspace": (("decoder", "type"), "Metaspace"),
    "lstrip": (("added_tokens", 0, "lstrip"), True),
    "not special": (("added_tokens", 0, "special"), False),
    "normalized": (("added_tokens", 0, "normalized"), True),
    "byte": (("model", "vocab"), {}),
    "tokenizers saves": (("model",), None),
    "zzzz": (("model", "merges"), [["zzzz", "a"]]),
}


@pytest.mark.parametrize(("named", "change"), REFUSED.items(), ids=REFUSED)
def test_what_is_not_read_is_refused_by_name(named, change):
    with pytest.raises(ConfigError, match=named):
        Tokenizer(changed(*change))


FOREIGN = [r"\w+", r"\b", "^a", "a$", r"a{2}+", "[a[bc]]", "[a&&b]", r"\p{Han}", r"\p{Lx}", "[]a]"]
FOREIGN += [r"[^\S\n]", "(?<name>a)", "(?m:.)", r"\R", r"\h", r"(a)\1", "(a", r"\p{^L}", "\\"]


@pytest.mark.parametrize("pattern", FOREIGN)
def test_patterns_that_may_mean_something_else_are_refused(pattern):
    with pytest.raises(ConfigError, match="Split pattern"):
        SplitPattern(pattern)


def test_pieces_hold_what_lies_between_matches_too():
    assert list(SplitPattern(r"\d").pieces("ab1c")) == ["ab", "1", "c"]
    assert list(SplitPattern("x*").pieces("axxb")) == ["a", "xx", "b"]
    assert list(SplitPattern(r"\P{L}").pieces("é1ü")) == ["é", "1", "ü"]
