"""Sends bent replies, and judges what clients of every dialect are told of them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import anyio

from batuta.clients import HttpTransport, open_client
from batuta.clients.limits import CallLimiter
from batuta.clients.providers import asks_by_responses, find_provider
from batuta.conductors import sequential_chain
from batuta.core import Pool, Run
from batuta.gateway import served_models
from batuta.store import Store
from gateway.live_server import Serving, server_state
from wires.bending import MARK, Bent, BentUpstream, bend, good
from wires.case import CASES, Case
from wires.client_view import PATHS, Seen, first_body, read_answer
from wires.said import CALL, THOUGHT, words_said
from wires.test_wires import QUICK, SERVED, searching_tools, worker_specs

UPSTREAMS = {
    "bad_request",
    "invalid_prompt",
    "rate_limit_exceeded",
    "context_length_exceeded",
    "content_filter",
}
"""Codes of errors that the upstream told while it streamed."""
KNOWN = [case for case in CASES if case.bend and not {"messages", "input"} & {n for f in case.fields.values() for n in f}]  # fmt: skip
"""The cases whose question can be given a number."""
BLOCK = 25
"""Questions in a row that are asked of one server, which is of one case."""
DOCUMENTED = {"upstream_error", "wrong_form", "no_tool_call", "overloaded", "deadline_exceeded"}
"""Codes of a 5xx that is the upstream's."""
PURE = {"reordered", "many", "in pieces", "carriage returns", "lone carriage returns", "bom", "no spaces"}  # fmt: skip
"""Bends after which every event that is there is whole and read."""
PRICE = {"input": Decimal("0.000001"), "output": Decimal("0.000002")}
MOST = {"input": 3000, "output": 2000}
"""Counts beyond these are a bent number, which nobody needs to believe."""


def dialect_of(case: Case) -> str:
    """The dialect of the case's upstream."""
    [spec, _] = worker_specs(case, "http://127.0.0.1")
    return "responses" if asks_by_responses(spec) else find_provider(case.provider).api


def bodies() -> dict[tuple[str, bool], list[bytes]]:
    """Return the upstreams' bodies in each dialect, streamed and whole.

    Those that may not be bent are in none: of a call in a text its marks are lost, as they should be.
    """
    found: dict[tuple[str, bool], list[bytes]] = {}
    for case in CASES:
        for streamed in (True, False):
            text = case.turns[0].answer.text(streamed=streamed).encode(errors="surrogatepass")
            if text and case.bend:
                found.setdefault((dialect_of(case), streamed), []).append(text)
    return found


BODIES = bodies()


class KeepingStore(Store):
    """Keeps the runs of questions, by their number."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.runs: dict[int, Run] = {}

    async def append(self, run: Run, *args: Any, **more: Any) -> None:
        text = run.header.question.messages[0].text
        self.runs[int(MARK.findall(text.encode())[-1])] = run
        await super().append(run, *args, **more)


@dataclass(frozen=True)
class Asked:
    """One question: who asks how, and what its upstream answers, attempt by attempt."""

    number: int
    case: Case
    dialect: str
    model: str
    mode: str
    answers: tuple[Bent, ...]

    @property
    def throttles(self) -> bool:
        """Return True if the upstream asks to be left alone for a while."""
        return self.answers[0].status in {429, 503, 529}

    @property
    def is_pure(self) -> bool:
        return set(self.answers[0].done) <= PURE

    @property
    def place(self) -> str:
        done = " + ".join(self.answers[0].done)
        return f"{self.number} {self.case.name}, {self.dialect}, {self.model}, {self.mode}: {done}"


def case_of(number: int) -> Case:
    return Random(number // BLOCK).choice(KNOWN)


@lru_cache(maxsize=256)
def asked(number: int) -> Asked:
    """The question of a number; it depends on nothing else."""
    random = Random(number)
    case = case_of(number)
    dialect, model, mode = random.choice(case.places())
    streamed = mode == "streamed"
    bent = bend(good(case, streamed=streamed), BODIES[dialect_of(case), streamed], random)
    answers = (bent,) if random.random() < 0.7 else (bent, good(case, streamed=streamed))
    return Asked(number, case, dialect, model, mode, answers)


@asynccontextmanager
async def served(case: Case, store: KeepingStore, http: HttpTransport):
    """A server of two workers at an upstream that answers questions of the case."""
    async with BentUpstream() as upstream:
        specs = worker_specs(replace(case, refusals=[]), upstream.origin)
        pool = Pool(tuple(spec.worker for spec in specs))
        limiter = CallLimiter(50, sleep=lambda _: anyio.sleep(0))
        clients = {
            spec.worker.id: open_client(spec, http, policy=QUICK, limiter=limiter) for spec in specs
        }
        conductor = sequential_chain(["Think.", "Answer."], ["ada", "bob"])
        tools = searching_tools(case)
        models = served_models(pool, conductor)
        app_state = server_state(pool, clients, models, store=store, server_tools=tools)
        async with Serving(app_state) as server:
            yield server, upstream


async def tell(server: Serving, upstream: BentUpstream, one: Asked) -> tuple[int, bytes]:
    """Status and body of the answer."""
    upstream.ready[one.number] = [(answer, answer.sent()) for answer in one.answers]
    text = f"{one.case.text} (question {one.number})"
    body = first_body(one.dialect, SERVED[one.model], text, one.case.tools)
    body |= {**one.case.fields.get(one.dialect, {}), "stream": one.mode == "streamed"}
    if one.dialect == "chat" and body["stream"]:
        body["stream_options"] = {"include_usage": True}
    headers = {"anthropic-version": "2023-06-01"} if one.dialect == "messages" else {}
    async with server.http.post(PATHS[one.dialect], json=body, headers=headers) as response:
        return response.status, await response.read()


async def stored(store: KeepingStore, number: int) -> Run | None:
    """The question's run, which is stored a moment after its answer."""
    with anyio.move_on_after(60):
        while number not in store.runs:
            await anyio.sleep(0.01)
    return store.runs.pop(number, None)


def judge(one: Asked, status: int, raw: bytes, run: Run | None, given: list[Bent]) -> str:
    """Return what is wrong with the answer; an empty text if nothing is.

    Raises:
        AssertionError, LookupError, TypeError, ValueError: the answer has not its dialect's form.
    """
    seen = read_answer(one.dialect, status, raw, streamed=one.mode == "streamed")
    if run is None:
        return "no run was stored"
    if seen.error is not None and is_ours(seen):
        return f"an error of ours: {seen.status} {seen.error}"
    said = [words_said(answer, one.mode) for answer in given]
    least = [stated_usd(counts) for _, counts in said]
    if seen.error is not None:
        counted = run.cost.usd if one.is_pure else sum(least)
        return f"an error: {run.cost.usd} of {least} counted" if counted < sum(least) else ""
    words = words_of(seen)
    lost = [[piece for piece in pieces if not is_in(piece, words)] for pieces, _ in said]
    unseen = THOUGHT * (one.dialect == "messages" or one.model != "worker")
    unseen += CALL * (not one.case.tools)  # calls of tools that nobody offered
    lost = [[piece for piece in each if piece[0] not in unseen] for each in lost]
    if said and all(lost):
        return f"lost: {min(lost, key=len)[:3]!r:.300} in {words[:300]!r}"
    if run.cost.usd < (sum(least) if one.is_pure else max(least)):
        return f"{run.cost.usd} of {least} counted"
    return ""


def is_ours(seen: Seen) -> bool:
    """Return True if the error is a fault of the server."""
    error = seen.error or {}
    if seen.status >= 500 or seen.status == 200:
        return error.get("code") not in DOCUMENTED | UPSTREAMS
    return False


def stated_usd(counts: Any) -> Decimal:
    if not all(0 < counts[kind] <= most for kind, most in MOST.items()):
        return Decimal(0)  # one who states a wrong count is believed in neither
    return counts["input"] * PRICE["input"] + counts["output"] * PRICE["output"]


def words_of(seen: Seen) -> str:
    calls = "".join(name + given for _, name, given in seen.calls)
    return seen.text + seen.reasoning + calls


def is_in(piece: str, words: str) -> bool:
    """Return True if a piece of a text or of arguments, whose JSON may be written anew, is told.

    Arguments that are no object are told as a text in one where a dialect has only objects.
    """
    piece = piece.removeprefix(THOUGHT).removeprefix(CALL)
    bare = piece.strip('"{} \n')
    if any("\ud800" <= one <= "\udfff" for one in piece) or bare in words:
        return True
    if json.dumps(bare)[1:-1] in words:
        return True
    try:
        return json.dumps(json.loads(piece)) in words
    except ValueError:
        return False
