"""Questions over the small web of the tests, asked of real small models with and without search and pages: README.md.

    python recipes/small-web/measure.py ask [--questions N] [--server http://127.0.0.1:8080]
    python recipes/small-web/measure.py table

`ask` keeps every answer in answers.jsonl, and asks for none that it has.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from answer_record import AnswerRecord

from batuta.core.intervals import wilson_interval
from batuta.language.answer_extraction import final_answer
from fakes.serving import Server
from fakes.web import Fact, FakeWeb, make_web

RECORD = Path(__file__).parent / "answers.jsonl"
MODELS = ("qwen-1.5b", "qwen-0.5b")
WAYS = ("alone", "tool", "conducted")
SYSTEMS = [(model, way) for model in MODELS for way in WAYS]
KINDS = ("one page", "two pages", "three pages")
BLOCK = 6
QUESTIONS = 120
SEED = 1
SETTINGS = """\
[[workers]]
id = "qwen-1.5b"
model = "qwen-1.5b"
provider = "llamacpp"
base_url = "{server}/v1"
tags = ["tools"]
price = {{ input = 0, output = 0 }}
context_window = 4096
sampling = {{ temperature = 0, max_tokens = 300 }}

[[workers]]
id = "qwen-0.5b"
model = "qwen-0.5b"
provider = "llamacpp"
base_url = "{server}/v1"
tags = ["tools"]
price = {{ input = 0, output = 0 }}
context_window = 4096
sampling = {{ temperature = 0, max_tokens = 300 }}

[[workers]]
id = "search"
provider = "search"

[[workers]]
id = "reader"
provider = "reader"

[tools.search]
engine = "searxng"
base_url = "{web}"
results = 5
server_tool = true
max_uses = 3

[tools.reader]
private_hosts = ["{host}"]
max_characters = 1500
server_tool = true
max_uses = 3
"""


@dataclass(frozen=True)
class Asked:
    """A question, its kind, and the years of the right answer."""

    text: str
    kind: str
    wanted: frozenset[str]


def draw_questions() -> list[Asked]:
    """Return the questions, the same every time."""
    rng = random.Random(SEED)
    _, facts = make_web(SEED)
    asked: list[Asked] = []
    for number in range(QUESTIONS):
        kind = number % len(KINDS)
        asked.append(_ask_of(rng.sample(facts, kind + 1), KINDS[kind]))
    return asked


def _ask_of(facts: list[Fact], kind: str) -> Asked:
    names = [fact.question.removeprefix("When was ").removesuffix(" opened?") for fact in facts]
    years = [fact.answer for fact in facts]
    if kind == "one page":
        text = f"In which year was {names[0]} opened?"
    elif kind == "two pages":
        text = f"In which years were {names[0]} and {names[1]} opened?"
    else:
        text = f"{names[0]}, {names[1]} and {names[2]}: in which year was the last of them opened?"
        years = [max(years)]
    told = "the years alone" if kind == "two pages" else "the year alone"
    return Asked(
        f"{text[0].upper()}{text[1:]} End with a line 'Answer:' and {told}.", kind, frozenset(years)
    )


def is_right(answer: str | None, wanted: frozenset[str]) -> bool:
    """Return whether the final answer has those years and no other."""
    stated = final_answer(answer or "") or ""
    bare = re.sub(r"https?://\S+", "", stated)
    return set(re.findall(r"\b\d{4}\b", bare)) == wanted


def request_body(asked: Asked, model: str, way: str) -> dict[str, Any]:
    """Return the request of chat completions."""
    body: dict[str, Any] = {
        "model": f"worker/{model}",
        "messages": [{"role": "user", "content": asked.text}],
        "orchestration": {"trace": True},
    }
    if way == "tool":
        body["web_search_options"] = {}
    if way == "conducted":
        steps = [
            {"worker": "search", "subtask": asked.text.split(" End with")[0], "access": []},
            {"worker": "reader", "subtask": "", "access": [0]},
            {"worker": model, "subtask": "", "access": [0, 1]},
        ]
        body["model"] = "batuta-ultra"
        body["orchestration"]["workflow"] = {"steps": steps}
    return body


class Record(AnswerRecord):
    """The rows of the file by question and system; a line that was cut off is dropped."""

    FIELDS = ("number", "model", "way")

    def __init__(self, path: Path = RECORD) -> None:
        super().__init__(path)


async def ask(questions: int, server: str, record: Record) -> None:
    """Ask the questions, a block after the other."""
    asked = draw_questions()[:questions]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with FakeWeb(seed=SEED) as web:
            text = SETTINGS.format(server=server, web=web.url, host=web.host)
            (folder / "batuta.toml").write_text(text)
            async with Server(folder, "--pool", str(folder / "batuta.toml")) as batuta:
                for first in range(0, len(asked), BLOCK):
                    block = range(first, min(first + BLOCK, len(asked)))
                    for model, way in SYSTEMS:
                        async with anyio.create_task_group() as group:
                            for n in block:
                                if (n, model, way) not in record.rows:
                                    group.start_soon(
                                        _ask_one, batuta, n, asked[n], model, way, record
                                    )
                    print(f"{block.stop} questions", flush=True)


async def _ask_one(
    batuta: Any, number: int, asked: Asked, model: str, way: str, record: Record
) -> None:
    began = time.monotonic()
    body = request_body(asked, model, way)
    async with batuta.http.post("/v1/chat/completions", json=body, timeout=None) as response:
        said = await response.json()
    seconds = round(time.monotonic() - began, 2)
    if response.status >= 500:  # a machine that is too slow says nothing of a model
        print(f"{model} {way} {number}: {said['error']['message']}", flush=True)
        return
    if response.status != 200:
        code = said["error"]["code"]
        record.add(number=number, model=model, way=way, answer=None, error=code, tokens=0, calls={}, seconds=seconds)  # fmt: skip
        return
    answer = said["choices"][0]["message"]["content"]
    record.add(
        number=number, model=model, way=way, answer=answer, error=None, seconds=seconds,
        tokens=said["usage"]["total_tokens"], calls=count_calls(said["orchestration"]),
    )  # fmt: skip


def count_calls(trace: dict[str, Any]) -> dict[str, int]:
    """Return the calls of models and of tools in a run."""
    calls = {"model": 0, "search": 0, "page": 0}
    for round_ in trace["rounds"]:
        for step in round_["steps"]:
            reply = step["result"]
            for call in reply.get("server_calls") or ():
                calls["page" if call["name"] == "web_fetch" else "search"] += 1
            kind = {"search": "search", "reader": "page"}.get(step["worker"], "model")
            calls[kind] += reply["usage"]["calls"]
    return calls


def complete_questions(record: Record) -> list[int]:
    """Return the numbers of the blocks that were asked in every system."""
    kept: list[int] = []
    for first in range(0, QUESTIONS, BLOCK):
        block = range(first, first + BLOCK)
        if any((n, *system) not in record.rows for n in block for system in SYSTEMS):
            break
        kept += block
    return kept


def table(record: Record) -> Iterator[str]:
    """Yield the lines of the table."""
    asked, numbers = draw_questions(), complete_questions(record)
    yield f"{len(numbers)} of {QUESTIONS} questions."
    yield ""
    yield f"| model | way | right | {' | '.join(KINDS)} | failed | tokens | calls of models | searches | pages | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for model, way in SYSTEMS:
        rows = [record.rows[n, model, way] for n in numbers]
        right = {
            n: is_right(record.rows[n, model, way]["answer"], asked[n].wanted) for n in numbers
        }
        kinds = [
            f"{sum(right[n] for n in numbers if asked[n].kind == kind)} of {sum(asked[n].kind == kind for n in numbers)}"
            for kind in KINDS
        ]
        means = [
            f"{_mean([row['calls'].get(k, 0) for row in rows]):.1f}"
            for k in ("model", "search", "page")
        ]
        cells = (
            model, way, _share(sum(right.values()), len(numbers)), *kinds,
            str(sum(row["error"] is not None for row in rows)),
            f"{_mean([row['tokens'] for row in rows]):.0f}", *means,
            f"{_mean([row['seconds'] for row in rows]):.0f}",
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(part: int, whole: int) -> str:
    if not whole:
        return "none"
    low, high = wilson_interval(part, whole)
    return f"{part}: {100 * part / whole:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("ask", "table"))
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    given = parser.parse_args()
    if given.command == "ask":
        anyio.run(ask, given.questions, given.server, Record())
    print("\n".join(table(Record())))
