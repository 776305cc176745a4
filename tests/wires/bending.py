"""Replies that no good upstream sends: those of the corpus, bent at random, each from its own number."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gateway.mutations import json_places
from wires.case import Case
from wires.upstream import Upstream

INPUTS = ("prompt_tokens", "input_tokens", "promptTokenCount")
OUTPUTS = ("completion_tokens", "output_tokens", "candidatesTokenCount")
SPOKEN = ("content", "arguments", "delta", "partial_json", "text")
"""Fields that hold words of the model."""
MARK = re.compile(rb"\(question (\d+)\)")


@dataclass(frozen=True)
class Bent:
    """The bytes of one answer of an upstream, and how they are sent."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunks: tuple[bytes, ...] | None = None
    """The body as the pieces of a chunked answer, framing included; None: it ends with the connection."""
    length: int | None = None
    """The length that is announced."""
    pieces: tuple[int, ...] = ()
    """The places at which the bytes are cut when they are sent."""
    is_broken: bool = False
    """The connection is broken after the last byte."""
    is_garbled: bool = False
    """True if the chunks are no HTTP: nobody can say what of the body arrives."""
    done: tuple[str, ...] = ()
    """The changes that were made to it."""

    def raw(self) -> bytes:
        told = [f"{name}: {value}" for name, value in self.headers]
        if self.chunks is not None:
            told.append("transfer-encoding: chunked")
        if self.length is not None:
            told.append(f"content-length: {self.length}")
        head = "\r\n".join((f"HTTP/1.1 {self.status} Said", *told, "connection: close", "", ""))
        return head.encode() + (self.body if self.chunks is None else b"".join(self.chunks))

    def sent(self) -> list[bytes]:
        """The bytes in pieces."""
        raw = self.raw()
        cuts = sorted({min(cut, len(raw)) for cut in self.pieces})
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]


class BentUpstream(Upstream):
    """Answers each question by its number with what was laid ready for it."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: dict[int, list[tuple[Bent, list[bytes]]]] = {}
        """The answers to the first, second and later attempts and their pieces; the last stays."""
        self.given: dict[int, list[Bent]] = {}

    async def _answer(self, writer: asyncio.StreamWriter, body: Any, *, streamed: bool) -> None:
        del streamed
        self.bodies.clear()
        [number, *_] = map(int, MARK.findall(json.dumps(body).encode()))
        given = self.given.setdefault(number, [])
        answers = self.ready[number]
        answer, pieces = answers[min(len(given), len(answers) - 1)]
        given.append(answer)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if answer.pieces:
                await asyncio.sleep(0)
        if answer.is_broken:
            writer.transport.abort()


def good(case: Case, *, streamed: bool) -> Bent:
    """Return what the case's upstream says, unbent."""
    answer = case.turns[0].answer
    body = answer.text(streamed=streamed).encode(errors="surrogatepass")
    events = streamed and answer.status == 200 and bool(answer.stream)
    kind = answer.content_type or ("text/event-stream" if events else "application/json")
    headers = (("content-type", kind), *answer.headers.items())
    length = None if events else len(body)
    return Bent(body, answer.status, headers, length=length, is_broken=answer.cut)


def bend(first: Bent, others: list[bytes], random: Random) -> Bent:
    """The answer with one to three things done to it, and then sent in a way of its own."""
    bent = first
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        name, how = random.choice(BENDS)
        body = how(random, bent.body, random.choice(others))
        length = None if bent.length is None else len(body)
        bent = replace(bent, body=body, length=length, done=(*bent.done, name))
    for _ in range(random.choice((0, 1, 1, 2))):
        name, sending = random.choice(SENDINGS)
        bent = replace(sending(random, bent), done=(*bent.done, name))
    return bent


def events_of(stream: bytes) -> list[bytes]:
    return [event for event in stream.split(b"\n\n") if event.strip()]


def joined(events: list[bytes]) -> bytes:
    return b"".join(event + b"\n\n" for event in events)


def reordered(events: list[bytes], rng: Random) -> list[bytes]:
    """The events with some repeated or told in another order; the last one stays the last."""
    *body, last = events
    for _ in range(rng.randrange(1, 3)):
        if not body:
            break
        at = rng.randrange(len(body))
        if rng.random() < 0.5:
            body.insert(at, body[at])
        else:
            body.insert(rng.randrange(len(body)), body.pop(at))
    return [*body, last]


def said_by(events: list[bytes]) -> tuple[list[str], Counter[str]]:
    """The texts and arguments that the events tell in pieces, and the counts that they state."""
    pieces: list[str] = []
    counts: Counter[str] = Counter()
    for event in events:
        data = b"\n".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
        try:
            walk(json.loads(data), pieces, counts)
        except ValueError:
            continue
    return pieces, counts


def walk(value: Any, pieces: list[str], counts: Counter[str], name: str = "") -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            walk(inner, pieces, counts, key)
    elif isinstance(value, list):
        for inner in value:
            walk(inner, pieces, counts, name)
    elif isinstance(value, str) and name in SPOKEN:
        pieces.append(value)
    elif name in (*INPUTS, *OUTPUTS) and isinstance(value, int):
        kind = "input" if name in INPUTS else "output"
        counts[kind] = max(counts[kind], value)


MOST_BYTES = 1 << 25
"""Of a body that is made by telling a part of it again and again."""


# -- bends of the body ------------------------------------------------------------------------


def _events(change: Callable[[Random, list[bytes], list[bytes]], list[bytes]]) -> Any:
    """A bend of a body as one of its events; one that has none is one event."""

    def bent(random: Random, body: bytes, other: bytes) -> bytes:
        events = events_of(body)
        if not events:
            return body
        changed = change(random, events, events_of(other))
        return joined(changed) if b"\n\n" in body else b"".join(changed)

    return bent


def _dropped(random: Random, events: list[bytes], _: list[bytes]) -> list[bytes]:
    at = random.randrange(len(events))
    return events[:at] + events[at + 1 :]


def _many(random: Random, events: list[bytes], _: list[bytes]) -> list[bytes]:
    at = random.randrange(len(events))
    times = random.choice((5, 300, 3000))
    most = MOST_BYTES // (len(events[at]) or 1)  # a body without blank lines is one event
    return events[:at] + [events[at]] * min(times, most) + events[at:]


def _shuffled(random: Random, events: list[bytes], _: list[bytes]) -> list[bytes]:
    return random.sample(events, len(events))


def _mixed(random: Random, events: list[bytes], others: list[bytes]) -> list[bytes]:
    """Both streams as one, each in its order."""
    mixed, left, right = [], list(events), list(others)
    while left or right:
        side = left if left and (not right or random.random() < 0.5) else right
        mixed.append(side.pop(0))
    return mixed


def _odd_value(random: Random, events: list[bytes], _: list[bytes]) -> list[bytes]:
    """One value of one event is another."""
    at = random.randrange(len(events))
    head, mark, data = events[at].rpartition(b"data: ")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return events
    places = [place for place in json_places(value) if place]
    if not places:
        return events
    place = random.choice(places)
    holder = value
    for step in place[:-1]:
        holder = holder[step]
    how = random.choice(("odd", "odd", "drop", "wrap", "long", "many"))
    old = holder[place[-1]]
    if how == "drop":
        del holder[place[-1]]
    elif how == "long" and isinstance(old, str):
        holder[place[-1]] = (old or "x ") * random.choice((100, 20_000))
    elif how == "many" and isinstance(old, list):
        holder[place[-1]] = old * random.choice((2, 200, 3000))
    else:
        holder[place[-1]] = [old] if how == "wrap" else random.choice(ODD)
    told = json.dumps(value).encode().replace(b'"@DEEP"', b"[" * 30_000 + b"]" * 30_000)
    return [*events[:at], head + mark + told, *events[at + 1 :]]


ODD: tuple[Any, ...] = (None, True, False, 0, -1, 1, 7, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "\u202e\ufeff", "\ud83d", "\x00", "stop", "tool_calls", "length", "error", "{", "{}", "[1]", "null", [], {}, [[]], [None], [{}], {"": 1}, {"error": "no"}, "@DEEP")  # fmt: skip


def _flipped(random: Random, body: bytes, _: bytes) -> bytes:
    found = bytearray(body)
    times = random.choice((1, 3, 20)) if found else 0
    for at in random.choices(range(len(found)), k=times) if found else ():
        found[at] = random.randrange(256)
    return bytes(found)


def _inserted(random: Random, body: bytes, _: bytes) -> bytes:
    at = random.randrange(len(body) + 1)
    word = random.choice((b"\0", b"\xff\xfe", b"\r", b"\n", b"\n\n", b":\n", b"data:\n\n", b": ping\n\n", b"event: ping\ndata: {}\n\n", b"retry: 1\n", b"data: [DONE]\n\n", b"data: null\n\n", b"id: \0\n", b"x" * 70_000))  # fmt: skip
    return body[:at] + word + body[at:]


BENDS: tuple[tuple[str, Callable[[Random, bytes, bytes], bytes]], ...] = (
    ("reordered", _events(lambda random, events, _: reordered(events, random))),
    ("shuffled", _events(_shuffled)),
    ("dropped", _events(_dropped)),
    ("many", _events(_many)),
    ("mixed", _events(_mixed)),
    ("behind another", _events(lambda _, events, others: others + events)),
    ("before another", _events(lambda _, events, others: events + others)),
    ("odd value", _events(_odd_value)),
    ("odd value", _events(_odd_value)),
    ("cut", lambda random, body, _: body[: random.randrange(len(body) + 1)]),
    ("begun later", lambda random, body, _: body[random.randrange(len(body) + 1) :]),
    ("flipped", _flipped),
    ("inserted", _inserted),
    ("another's end", lambda random, body, other: body[: random.randrange(len(body) + 1)] + other[random.randrange(len(other) + 1) :]),
    ("carriage returns", lambda _, body, __: body.replace(b"\n", b"\r\n")),
    ("lone carriage returns", lambda _, body, __: body.replace(b"\n", b"\r")),
    ("bom", lambda _, body, __: b"\xef\xbb\xbf" + body),
    ("no spaces", lambda _, body, __: body.replace(b"data: ", b"data:")),
    ("one line feed", lambda _, body, __: body.replace(b"\n\n", b"\n")),
    ("utf-16", lambda _, body, __: body.decode(errors="replace").encode("utf-16")),
    ("nothing", lambda *_: b""),
    ("noise", lambda random, *_: random.randbytes(300)),
)  # fmt: skip

# -- ways of sending --------------------------------------------------------------------------


def _in_pieces(random: Random, bent: Bent) -> Bent:
    size = len(bent.body) + 300
    return replace(bent, pieces=tuple(random.randrange(size) for _ in range(random.choice((2, 30)))))  # fmt: skip


def _in_chunks(random: Random, bent: Bent) -> Bent:
    """Chunked as it should be, or with a size, an end or an extension that is wrong."""
    body = bent.body
    cuts = sorted(random.randrange(len(body) + 1) for _ in range(random.choice((0, 3, 20))))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a < b]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    at = random.randrange(len(chunks))
    wrong = random.choice(("", "", "end", "size", "text", "feeds", "extension", "trailer", "huge"))
    if wrong == "end":
        chunks = chunks[:at]
    elif wrong in {"size", "huge"}:
        chunks[at] = (b"7" if wrong == "size" else b"f" * 16) + chunks[at]
    elif wrong == "text":
        chunks[at] = b"zz" + chunks[at]
    elif wrong == "feeds":
        chunks[at] = chunks[at].replace(b"\r\n", b"\n")
    elif wrong == "extension":
        chunks[at] = chunks[at].replace(b"\r\n", b";" + b"x" * random.choice((9, 9000)) + b"\r\n", 1)  # fmt: skip
    elif wrong == "trailer":
        chunks[-1] = b"0\r\nx: " + b"y" * random.choice((9, 99_000)) + b"\r\n\r\n"
    return replace(bent, chunks=tuple(chunks), length=None, is_garbled=wrong != "")


def _with_header(bent: Bent, name: str, value: str) -> Bent:
    kept = tuple(each for each in bent.headers if each[0] != name)
    return replace(bent, headers=(*kept, (name, value)))


def _packed(random: Random, bent: Bent) -> Bent:
    if bent.chunks is not None:
        return bent
    body = gzip.compress(bent.body, mtime=0) if random.random() < 0.5 else bent.body
    length = None if bent.length is None else len(body)
    return _with_header(replace(bent, body=body, length=length), "content-encoding", random.choice(("gzip", "gzip", "deflate", "br", "zstd", "x")))  # fmt: skip


KINDS = ("text/event-stream", "application/json", "text/html", "text/plain; charset=utf-16", "", "application/octet-stream", "\xff", "text/event-stream; charset=latin-1")  # fmt: skip
STATUSES = (201, 204, 206, 301, 304, 400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 503, 529, 600, 999)  # fmt: skip
SENDINGS: tuple[tuple[str, Callable[[Random, Bent], Bent]], ...] = (
    ("in pieces", _in_pieces),
    ("in pieces", _in_pieces),
    ("in chunks", _in_chunks),
    ("in chunks", _in_chunks),
    ("broken", lambda _, bent: replace(bent, is_broken=True)),
    ("length", lambda random, bent: bent if bent.chunks else replace(bent, length=max(len(bent.body) + random.choice((-9, 1, 10**9)), 0))),
    ("kind", lambda random, bent: _with_header(bent, "content-type", random.choice(KINDS))),
    ("status", lambda random, bent: replace(bent, status=random.choice(STATUSES))),
    ("packed", _packed),
    ("retry later", lambda random, bent: _with_header(replace(bent, status=429), "retry-after", random.choice(("0", "1", "9999999", "-1", "x", "Fri, 31 Dec 9999 23:59:59 GMT")))),
)  # fmt: skip
