"""Text from bytes, and the end at a stop string."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batuta.embedded.client import IncrementalDetokenizer

alphabet = "ab\né🙂"
stops = st.lists(st.text("ab\né", max_size=4), max_size=3)


def pieces_of(data, cuts):
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[i:j] for i, j in pairwise(at)] or [b""]


def spoken(parts, stop):
    speech, said = IncrementalDetokenizer(stop), []
    for index, part in enumerate(parts):
        said.append(speech.append_bytes(part, last=index == len(parts) - 1))
        if speech.has_stopped:
            break
    return said, speech.has_stopped


@given(st.text(alphabet), st.lists(st.integers(0, 100)), stops)
def test_ends_before_the_first_stop_string_and_leaves_nothing_out(text, cuts, stop):
    said, stopped = spoken(pieces_of(text.encode(), cuts), stop)
    whole = "".join(said)
    real = [s for s in stop if s]
    assert stopped == any(s in text for s in real)
    if stopped:
        assert any(text.startswith(whole + s) for s in real)
        assert not any(s in whole for s in real)
    else:
        assert whole == text


@given(st.binary(), st.lists(st.integers(0, 100)))
def test_bytes_that_are_no_text_are_replaced_as_if_at_once(data, cuts):
    said, _ = spoken(pieces_of(data, cuts), ())
    assert "".join(said) == data.decode(errors="replace")


def test_holds_back_only_what_may_begin_a_stop_string():
    speech = IncrementalDetokenizer(["END", "\n\n"])
    assert speech.append_bytes(b"one\n") == "one"
    assert speech.append_bytes(b"two E") == "\ntwo "
    assert speech.append_bytes(b"N") == ""
    assert speech.append_bytes(b"x") == "ENx"
    assert speech.append_bytes(b"EEND after") == "E"
    assert speech.has_stopped


def test_half_a_character_waits_for_its_end():
    speech = IncrementalDetokenizer(())
    assert speech.append_bytes("é".encode()[:1]) == ""
    assert speech.append_bytes("é".encode()[1:]) == "é"
    assert speech.append_bytes("é".encode()[:1], last=True) == "\ufffd"
