"""What of a reply that must be JSON can be shown before it is checked."""

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from batuta.engine.call import JsonTextFilter

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
ROOTS = st.lists(VALUES) | st.dictionaries(st.text(), VALUES)


def shown(text, sizes):
    """What is shown of each fragment."""
    passing, told, at = JsonTextFilter(), [], 0
    for size in (*sizes, len(text)):
        told.append(passing.add(text[at : at + size]))
        at += size
    return told


@given(
    ROOTS,
    st.sampled_from(["", " ", "\n\t"]),
    st.sampled_from(["", "\n", " I hope this helps.", "}]"]),
    st.lists(st.integers(0, 7)),
    st.booleans(),
)
def test_a_value_is_shown_whole_and_nothing_after_it(value, before, after, sizes, ascii_only):
    text = before + json.dumps(value, ensure_ascii=ascii_only)
    assert "".join(shown(text + after, sizes)) == text


@given(st.text(), st.lists(st.integers(0, 7)))
def test_what_is_shown_is_the_beginning_of_what_was_said(text, sizes):
    told = "".join(shown(text, sizes))
    assert text.startswith(told)
    assert not told or told.lstrip()[0] in "{["


@given(ROOTS, st.lists(st.integers(0, 7)))
def test_nothing_is_shown_of_prose_or_of_a_code_block(value, sizes):
    for text in (f"Here it is: {json.dumps(value)}", f"```json\n{json.dumps(value)}\n```"):
        assert "".join(shown(text, sizes)) == ""


def test_a_value_is_shown_fragment_by_fragment():
    assert shown('{"a": 1, "b"', [1, 4, 3])[:3] == ["{", '"a":', " 1,"]


def test_what_was_held_is_released_once():
    passing = JsonTextFilter()
    assert passing.add("Let me ") == passing.add("look.") == ""
    assert (passing.release(), passing.release()) == ("Let me look.", "")
    assert passing.add("{") == ""


def test_blanks_that_come_one_by_one_take_time_linear_in_their_number():
    passing, began = JsonTextFilter(), time.process_time()
    assert not any(passing.add(" ") for _ in range(20_000))
    assert time.process_time() - began < 0.3
    assert passing.add("{") == " " * 20_000 + "{"
