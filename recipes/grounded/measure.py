"""How well real small models check answers over the small web of the tests against their sources: README.md.

    python recipes/grounded/measure.py ask [--answers N] [--server http://127.0.0.1:8080]
    python recipes/grounded/measure.py table [--record FILE]

`ask` keeps every answer and every verdict in answers.jsonl, and makes none that it has.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from answer_record import AnswerRecord

from batuta.clients import HttpTransport, ScriptedClient, open_clients
from batuta.clients.providers import find_provider
from batuta.conductors import FixedConductor
from batuta.core import Question, Reply, Sampling, Step, WorkerId, Workflow
from batuta.core.intervals import wilson_interval
from batuta.engine import RunSettings, conduct
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.grounding import (
    Source,
    find_sources,
    find_unsupported,
    mark_statements,
    split_statements,
)
from batuta.language.step_reading import find_addresses
from batuta.local.pool import local_spec
from fakes.planted import KINDS, found_pages, planted_statement
from fakes.web import Fact, FakeWeb
from tools.test_workers import MODEL, SEARCH, open_pool

RECORD = Path(__file__).parent / "answers.jsonl"
WRITERS = ("qwen-1.5b", "qwen-0.5b")
CHECKERS = ("qwen-1.5b", "qwen-0.5b", "smol")
BLOCK = 30
ANSWERS = 300
FACTS = 148
"""Of the web; an answer about a fact that was asked before has the same sources, which the server has still read."""
AT_ONCE = 8
TASK = "Answer the question in two or three sentences. After each, name the page that says it by its number in brackets."
WEB = "http://web.example"
"""Stands in the record for the small web's address, whose port changes."""


class Record(AnswerRecord):
    """The rows of the file by kind, number and model; a line that was cut off is dropped."""

    FIELDS = ("kind", "number", "model")

    def __init__(self, path: Path = RECORD) -> None:
        super().__init__(path)


class Measurement:
    """The small web, its search, and the models."""

    def __init__(self, fake: FakeWeb, config: Any, http: HttpTransport, server: str) -> None:
        self.fake = fake
        self.config = config
        specs = [
            replace(local_spec(name), provider="llamacpp", base_url=f"{server}/v1")
            for name in CHECKERS
        ]
        self.workers = {spec.worker.id: spec.worker for spec in specs}
        self.clients = open_clients(specs, http)

    async def run(self, number: int, client: Any, settings: RunSettings = RunSettings()) -> Any:  # noqa: B008 - frozen
        """Search for the question of that number and answer it by that client."""
        fact = self._fact(number)
        steps = (
            Step(subtask=fact.question, worker=SEARCH),
            Step(subtask=TASK, worker=MODEL, access=(0,)),
        )
        clients = {**self.config.clients, **self.clients, MODEL: client}
        author = FixedConductor("by-hand", lambda _: Workflow(steps))
        question = Question.of(fact.question)
        return await conduct(question, author, self.config.pool, clients, settings=settings)

    def _fact(self, number: int) -> Fact:
        return self.fake.facts[number % len(self.fake.facts)]

    async def write(self, number: int, record: Record) -> None:
        """Have that answer written, plant a statement in every third, and keep it."""
        name = WRITERS[number % 2]
        if ("answer", number, name) in record.rows:
            return
        client = self.clients[WorkerId(name)]

        class Short:
            """The writer with its model and its limit."""

            async def complete(self, request: Any, *more: Any) -> Reply:
                sampling = Sampling(temperature=0.0, max_tokens=160)
                return await client.complete(replace(request, sampling=sampling), *more)

        run = await self.run(number, Short())
        wrote = run.steps[-1]
        if not isinstance(wrote.result, Reply):
            raise SystemExit(f"{name} did not write answer {number}: {wrote.result}")
        found = found_pages(wrote.request.messages[-1].text)
        planted = None
        text = wrote.result.text
        if number % 3 == 2:
            kind = KINDS[number // 3 % len(KINDS)]
            planted = planted_statement(kind, found, number)
            text = put_in(text, planted, random.Random(number))
        record.add(
            kind="answer", number=number, model=name, text=self._plain(text),
            planted=planted and self._plain(planted), how=planted and kind,
            tokens=wrote.usage.total, seconds=round(wrote.span.seconds, 2),
        )  # fmt: skip

    async def check(self, number: int, name: str, record: Record) -> None:
        """Have a model check that answer, and keep its verdict."""
        if ("verdict", number, name) in record.rows:
            return
        said = record.rows["answer", number, WRITERS[number % 2]]
        text = said["text"].replace(WEB, self.fake.url)
        worker = self.workers[WorkerId(name)]
        bounds = find_provider("llamacpp").schema_bounds
        policy = GroundedPolicy(
            name="sources", worker=worker, action=GroundedAction.MARK, bounds=bounds
        )
        settings = RunSettings(guardrails=Guardrails((), policy))
        run = await self.run(number, ScriptedClient(lambda _: text), settings)
        check = run.steps[-1]
        if not isinstance(
            check.result, Reply
        ):  # a machine that is too slow says nothing of a checker
            print(f"{name} did not check answer {number}: {check.result}", flush=True)
            return
        statements = split_statements(text)
        asked = Question.of(self._fact(number).question)
        sources = find_sources(asked, run.steps[:2], self.config.pool, Reply(text=text))
        marked = None
        if run.answer is not None:
            marked = find_unsupported(check.result.text, statements, sources)
            if mark_statements(statements, marked) != run.answer:
                raise SystemExit(f"answer {number} was marked otherwise than read here")
        record.add(
            kind="verdict", number=number, model=name, marked=marked,
            truth=[self._truth(each, said["planted"], sources) for each in statements],
            reply=check.result.text,
            tokens=check.usage.total, seconds=round(check.span.seconds, 2),
        )  # fmt: skip

    def _truth(self, statement: str, planted: str | None, sources: list[Source]) -> str:
        if planted and planted in self._plain(statement):  # a citation behind it belongs to it
            return "planted"
        return judge_own(statement.strip(), sources)

    def _plain(self, text: str) -> str:
        return text.replace(self.fake.url, WEB)


def put_in(text: str, planted: str, rng: random.Random) -> str:
    """Return the text with one more statement, at a drawn place."""
    said = [each.strip() for each in split_statements(text) if each.strip()]
    said.insert(rng.randint(0, len(said)), planted)
    return "\n".join(said)


def judge_own(statement: str, sources: list[Source]) -> str:
    """Say whether a statement of the writer's own is supported, by its numbers, names and citations."""
    addresses = set(find_addresses(statement))
    cited = {int(each) for each in re.findall(r"\[(\d{1,3})\]", statement)}
    bare = re.sub(r"https?://\S+|\[\d{1,3}\]", "", statement)
    numbers = set(re.findall(r"\d{3,}", bare))
    names = {word.lower() for word in re.findall(r"\b[A-Z]\w+", bare)[1:]}
    pages = {source.number for source in sources if source.number is not None}
    urls = {source.url for source in sources if source.url}
    told = " ".join(source.text for source in sources)
    if cited - pages or addresses - urls or any(each not in told for each in numbers):
        return "unsupported"
    for source in sources:
        words = set(re.findall(r"\w+", source.text.lower()))
        if (
            numbers and numbers | names <= words and source.number is not None
            and cited <= {source.number} and addresses <= {source.url}
        ):  # fmt: skip
            return "supported"
    return "not judged"


async def ask(answers: int, server: str, record: Record) -> None:
    """Write and check the answers, a block after the other."""
    async with HttpTransport(idle=3600) as http, FakeWeb() as fake:
        with tempfile.TemporaryDirectory() as folder:
            async with open_pool(fake, Path(folder), results=3) as config:
                here = Measurement(fake, config, http, server)
                for done, block in enumerate(blocks(answers), 1):
                    await _at_once([(here.write, number, record) for number in block])
                    await _at_once(
                        [(here.check, n, name, record) for name in CHECKERS for n in block]
                    )
                    print(f"{done} blocks", flush=True)


async def _at_once(calls: list[tuple[Any, ...]]) -> None:
    """Make the calls, a few at the same time of each model."""
    limits = {name: anyio.Semaphore(AT_ONCE) for name in (*CHECKERS, "")}

    async def make(call: Any, *given: Any) -> None:
        async with limits[given[1] if isinstance(given[1], str) else ""]:
            await call(*given)

    async with anyio.create_task_group() as group:
        for each in calls:
            group.start_soon(make, *each)


def blocks(answers: int) -> list[list[int]]:
    """Return the numbers in the order in which they are checked, those of one fact in the same block if it ends there."""
    order = sorted(range(answers), key=lambda number: (number % FACTS, number))
    return [sorted(order[first : first + BLOCK]) for first in range(0, answers, BLOCK)]


def complete_answers(record: Record) -> list[int]:
    """Return the numbers of the answers that every checker is through with."""
    return [
        n for n in range(ANSWERS) if all(("verdict", n, name) in record.rows for name in CHECKERS)
    ]


def table(record: Record) -> Iterator[str]:
    """Yield the lines of the table."""
    numbers = complete_answers(record)
    wrote = [record.rows["answer", n, WRITERS[n % 2]] for n in numbers]
    yield f"{len(numbers)} answers, {sum(bool(each['planted']) for each in wrote)} with a planted statement. {mean(wrote, 'tokens'):.0f} tokens and {mean(wrote, 'seconds'):.0f} s to write one."
    yield ""
    yield "| checker | no verdict | recall: planted, marked | precision | supported, wrongly marked | not judged, marked | tokens a check | seconds a check |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in CHECKERS:
        rows = [record.rows["verdict", n, name] for n in numbers]
        seen = Counter[tuple[str, bool]]()
        for row in rows:
            for index, truth in enumerate(row["truth"] if row["marked"] is not None else ()):
                seen[truth, index in row["marked"]] += 1
        bad = seen["planted", True] + seen["unsupported", True]
        shares = (
            share(seen["planted", True], seen["planted", True] + seen["planted", False]),
            share(bad, bad + seen["supported", True]),
            share(seen["supported", True], seen["supported", True] + seen["supported", False]),
            share(seen["not judged", True], seen["not judged", True] + seen["not judged", False]),
        )
        without = sum(row["marked"] is None for row in rows)
        yield f"| {name} | {without} | {' | '.join(shares)} | {mean(rows, 'tokens'):.0f} | {mean(rows, 'seconds'):.0f} |"
    yield ""
    yield f"| planted | {' | '.join(CHECKERS)} |"
    yield "|---|---|---|---|"
    for kind in KINDS:
        hits = [caught(record, numbers, name, kind) for name in CHECKERS]
        yield f"| {kind} | {' | '.join(f'{got} of {of}' for got, of in hits)} |"


def caught(record: Record, numbers: list[int], name: str, kind: str) -> tuple[int, int]:
    """Return how many planted statements of a kind that checker marked, and of how many."""
    rows = [
        record.rows["verdict", n, name]
        for n in numbers
        if record.rows["answer", n, WRITERS[n % 2]]["how"] == kind
    ]
    rows = [row for row in rows if row["marked"] is not None]
    return sum(row["truth"].index("planted") in row["marked"] for row in rows), len(rows)


def mean(rows: list[dict[str, Any]], key: str) -> float:
    """Return the mean of a number of the rows."""
    return sum(row[key] for row in rows) / len(rows) if rows else 0.0


def share(part: int, whole: int) -> str:
    """Return a share in words, with its interval."""
    if not whole:
        return "none"
    low, high = wilson_interval(part, whole)
    return f"{part} of {whole}: {100 * part / whole:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("ask", "table"))
    parser.add_argument("--answers", type=int, default=ANSWERS)
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    if given.command == "ask":
        try:
            urlopen(f"{given.server}/health", timeout=60).close()  # noqa: S310 - the caller's own address
        except OSError as error:
            raise SystemExit(f"no server of the models at {given.server}: {error}") from error
        anyio.run(ask, given.answers, given.server, Record(given.record))
    print("\n".join(table(Record(given.record))))
