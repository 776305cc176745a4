"""Made answers over the small web, a third with something planted, and a checker that is always right."""

import json
import random
import re

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import Question, Reply, Step, Worker, WorkerId, Workflow
from batuta.engine import RunSettings, conduct
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.grounding import MARK
from fakes.planted import KINDS, found_pages, opened, planted_statement
from fakes.web import FakeWeb
from tools.test_workers import MODEL, READER, SEARCH, open_pool

pytestmark = pytest.mark.anyio
COUNT = 300
_SOURCE = re.compile(
    r"Source (\d+) \([^\n]*\):\n<fetched_text>\n(?:(http\S+)\n)?(.*?)\n</fetched_text>", re.DOTALL
)
_STATEMENT = re.compile(r'<agent_response step="(\d+)">\n(.*?)\n</agent_response>', re.DOTALL)
GREETINGS = ("Here is what I found.", "Hello!", "This is what the pages say.")


def check(request):
    """The verdict of a checker that is always right."""
    return json.dumps({"verdicts": check_prompt(request.messages[-1].text)})


def check_prompt(prompt):
    """Say of each statement whether a source has its very words, and which; no model is needed."""
    sources = [(int(n), said) for n, _, said in _SOURCE.findall(prompt.split("The statements:")[0])]
    rows = []
    for number, statement in _STATEMENT.findall(prompt):
        claim = re.sub(r"\s*\((?:\[\d+\]|http\S+)\)", "", statement).rstrip(".").removeprefix("- ")
        where = [place for place, said in sources if claim in said]
        told = "no claim" if statement in GREETINGS else "yes" if where else "no"
        rows.append({"claim": int(number), "supported": told, "where": where})
    return rows


class Author:
    """Writes answers by a seed, from the pages that it was shown, and knows what it has planted."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.planted: str | None = None
        self.answers = 0

    def write(self, request):
        prompt = request.messages[-1].text
        pages = found_pages(prompt)
        true: list[str] = []
        for number, url, said in pages[:3]:
            cite = self.rng.choice(("", f" ([{number}])", f" ({url})"))
            true.append(f"{opened(said)}{cite}.")
        self.answers += 1
        self.planted = None
        if self.answers % 3 == 0:
            self.planted = planted_statement(self.rng.choice(KINDS), pages, self.answers)
        said = [*true, self.planted] if self.planted else true
        self.rng.shuffle(said)
        return self.rng.choice((" ", "\n", "\n- ")).join([self.rng.choice(GREETINGS), *said])


async def run_one(config, author, checker, fact, *, action, reads=False):
    steps = [Step(subtask=fact.question, worker=SEARCH)]
    if reads:
        steps.append(Step(subtask="", worker=READER, access=(0,)))
    steps.append(Step(subtask="Answer.", worker=MODEL, access=tuple(range(len(steps)))))
    eve = WorkerId("eve")
    policy = GroundedPolicy(name="sources", worker=Worker(id=eve, model="m"), action=action)
    return await conduct(
        Question.of(fact.question),
        FixedConductor("by-hand", lambda _: Workflow(tuple(steps))),
        config.pool,
        {**config.clients, MODEL: author, eve: checker},
        settings=RunSettings(guardrails=Guardrails((), policy)),
    )


async def test_nothing_planted_passes_and_nothing_supported_is_touched(tmp_path):
    async with FakeWeb() as fake, open_pool(fake, tmp_path) as config:
        author, planted = Author(1), 0
        writer, checker = ScriptedClient(author.write), ScriptedClient(check)
        for number in range(COUNT):
            fact = fake.facts[number % len(fake.facts)]
            run = await run_one(
                config, writer, checker, fact,
                action=GroundedAction.MARK, reads=number % 50 == 0,
            )  # fmt: skip
            answer = run.answer or ""
            planted += author.planted is not None
            if author.planted is None:
                assert MARK not in answer and run.guards == (), answer
            else:
                assert answer.count(MARK) == 1 and f"{author.planted} {MARK}" in answer, answer
            written = next(step for step in run.steps if step.worker == MODEL)
            assert isinstance(written.result, Reply)
            assert answer.replace(f" {MARK}", "") == written.result.text
        assert planted == COUNT // 3 and len(checker.requests) == COUNT
