"""How well real small models check made answers over the small web of the tests against their sources.

    python recipes/grounded/measure.py --checker smol --answers 30

The answers are those of tests/tools/test_grounded.py: true sentences of pages that were found, a third with something planted.
Counted are statements: planted ones that were marked (recall), and marked ones that were planted (precision); an answer
that the checker gave no verdict in the form for is counted apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.clients import HttpTransport, ScriptedClient
from batuta.conductors import FixedConductor
from batuta.config.load import load_config
from batuta.core import Question, Step, WorkerId, Workflow
from batuta.engine import RunSettings, conduct
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.grounding import MARK
from fakes.web import FakeWeb
from tools.test_grounded import Author
from tools.test_workers import MODEL, SEARCH, open_pool


async def check_one(config, author, policy, client, fact):
    """Run one answer and its check."""
    steps = (
        Step(subtask=fact.question, worker=SEARCH),
        Step(subtask="Answer.", worker=MODEL, access=(0,)),
    )
    return await conduct(
        Question.of(fact.question),
        FixedConductor("by-hand", lambda _: Workflow(steps)),
        config.pool,
        {**config.clients, MODEL: ScriptedClient(author.write), policy.worker.id: client},
        settings=RunSettings(guardrails=Guardrails((), policy)),
    )


async def measure(checker, answers):
    """Print the figures of that checker."""
    planted = caught = marked = unchecked = tokens = 0
    seconds = 0.0
    async with HttpTransport() as http, FakeWeb() as fake:
        local = await load_config(http, pool=f"local:{checker}")
        worker = local.pool[WorkerId(checker)]
        policy = GroundedPolicy(
            name="sources", worker=worker, action=GroundedAction.MARK, bounds=("maxItems",)
        )
        author = Author(1)
        with tempfile.TemporaryDirectory() as folder:
            async with open_pool(fake, Path(folder), results=3) as config:
                for number in range(answers):
                    fact = fake.facts[number % len(fake.facts)]
                    run = await check_one(config, author, policy, local.clients[worker.id], fact)
                    check = run.steps[-1]
                    tokens += check.usage.total
                    seconds += check.span.seconds
                    planted += author.planted is not None
                    if run.answer is None:
                        unchecked += 1
                        continue
                    marked += run.answer.count(MARK)
                    caught += bool(author.planted) and f"{author.planted} {MARK}" in run.answer
    print(f"{checker}: {answers} answers, {planted} with a planted statement, {unchecked} without a verdict")  # fmt: skip
    print(f"caught {caught} of {planted}; of {marked} marked statements {caught} were planted")
    print(f"{tokens / answers:.0f} tokens and {seconds / answers:.1f} s a check")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checker", default="smol")
    parser.add_argument("--answers", type=int, default=30)
    given = parser.parse_args()
    anyio.run(measure, given.checker, given.answers)
