"""No character of a stranger commands a terminal, hides or turns what stands beside it."""

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batuta.core.formatting import escape_controls, escape_json_controls

HOSTILE = (
    "\x1b[2J \x1b]8;;http://x\x07 \x1b]52;c;aGk=\x1b\\ \x9b31m \x9d0;t\x9c \a \b \r \x00 \x7f \u202e \u2066 "
    "\u200b \u2028 \ufeff \u00ad \ud800 \U000e0041 a\u200db"
)
ANY = st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "L"]))
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def commands(text):
    """What in the text a terminal would obey, or that turns what follows."""
    return {
        c
        for c in text
        if (unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} and c not in "\n\t")
        or unicodedata.bidirectional(c) in DIRECTIONS
    }


@given(ANY)
@example(HOSTILE)
def test_nothing_that_commands_is_left_and_twice_is_once(text):
    shown = escape_controls(text)
    assert not commands(shown) and not set(shown) & set("\u200b\ufeff\u00ad\u2060\U000e0041")
    assert escape_controls(shown) == shown
    assert len(shown) == len(text) - text.count("\r\n")


@pytest.mark.parametrize(
    "text",
    [
        "Zoë, 42 €\tnext\n\n", "日本語 中文 한국어", "שלום עולם", "مرحبا", "می\u200cخواهم", "क\u094d\u200dष",
        "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3 🇪🇺", "葛\U000e0100城", "ᠠ\u180b", "שלום\u200f", "e\u0301",
    ],
)  # fmt: skip
def test_ordinary_text_of_every_script_stays(text):
    assert escape_controls(text) == text


@pytest.mark.parametrize(
    "hidden",
    ["".join(map(chr, range(0xE0100, 0xE01F0))), "\ufe00\ufe01", "\u3164\uffa0\u115f\u1160", "\U0001d173\U0001bca0"],
)  # fmt: skip
def test_what_is_invisible_by_itself_hides_no_message(hidden):
    assert not set(escape_controls(f"a{hidden}b {hidden}")) & set(hidden)
    assert len(set(escape_controls(f"葛{hidden}")) & set(hidden)) <= 1
    assert not set(escape_json_controls(json.dumps(hidden, ensure_ascii=False))) & set(hidden)


def test_a_command_can_be_seen_in_its_place():
    assert escape_controls("a\x1b[31mb\r\nc\rd\x07e\u202ef") == "a␛[31mb\nc␍d␇e�f"


@given(
    st.recursive(
        ANY | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)
    )
)
@example([HOSTILE])
def test_json_keeps_its_value_and_loses_its_commands(value):
    text = json.dumps(value, ensure_ascii=False)
    shown = escape_json_controls(text)
    assert json.loads(shown) == json.loads(text) and not commands(shown)
