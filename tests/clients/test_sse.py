"""Server-sent events, cut anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import SseParser

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["", "message", "ping"]), st.lists(LINES, min_size=1, max_size=3))
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def parse(stream, cuts=()):
    parser, events, at = SseParser(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        events += parser.feed(stream[at:cut])
        at = max(at, cut)
    return events


@given(st.data(), EVENTS, ENDS, st.booleans())
def test_what_is_written_is_read_however_it_is_cut(data, events, end, bom):
    text = "\ufeff" if bom else ""
    for name, lines in events:
        text += f": comment{end}" + (f"event: {name}{end}" if name else "")
        text += "".join(f"data: {line}{end}" for line in lines) + end
    stream = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    expected = [(name, "\n".join(lines).encode()) for name, lines in events]
    assert parse(stream, cuts) == expected
    assert parse(stream, range(len(stream))) == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_are_read_the_same_whole_or_cut(stream, cuts):
    assert parse(stream, [min(cut, len(stream)) for cut in cuts]) == parse(stream)


def test_fields_without_space_or_colon_and_unknown_ones():
    stream = b"id: 4\nretry: 3\ndata:a\ndata\ndata:  b\nodd: x\nevent:e\n\n"
    assert parse(stream) == [("e", b"a\n\n b")]


def test_a_name_without_data_is_no_event_and_does_not_linger():
    assert parse(b"event: a\n\ndata: 1\n\n") == [("", b"1")]


def test_an_event_cut_off_by_the_end_is_dropped():
    assert parse(b"data: 1\n\ndata: 2\n") == [("", b"1")]


@given(st.data(), ENDS, st.booleans())
def test_an_object_ends_an_event_where_another_one_follows_it(data, end, named):
    objects = ['{"a": 1}', '{"b": "}\\n{"}', "[DONE]"]
    names = ["x", "y", ""] if named else ["", "", ""]
    text = "".join(
        (f"event: {name}{end}" if name else "") + f"data: {one}{end}"
        for name, one in zip(names, objects, strict=True)
    )
    stream = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    expected = [(name, one.encode()) for name, one in zip(names, objects, strict=True)]
    assert parse(stream, cuts) == parse(stream + b"\n", cuts) == expected


def test_an_object_in_several_lines_is_one_event():
    lines = ["{", '"a": [', "{}", ",", '{"b": 1}', "]", "}"]
    stream = "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    assert parse(stream) == [("", "\n".join(lines).encode())]
    assert parse(b"data: {}\nevent: late\n\n") == [("late", b"{}")]
