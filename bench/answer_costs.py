"""What an answer costs by provider, from the list prices: the table of docs/quickstart.md.

    python bench/answer_costs.py [QUESTION]

Nobody is called. The pool is what the provider's key gives, the conductor's prompt is the real one, and
the workflow is the same for all: the best two workers answer, and the best one reads both and decides.
Tokens of prompts are estimated from the real texts; those of replies are assumed.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import anyio

from batuta.clients import HttpTransport
from batuta.clients.providers import PROVIDERS
from batuta.config.load import load_config
from batuta.core import Question, Step, Usage, Workflow
from batuta.core.conductor import describe_prompt
from batuta.core.token_estimate import CHARACTERS_PER_TOKEN
from batuta.engine import estimate_workflow
from batuta.usage import usage_cost

HOSTED = ("openai", "anthropic", "gemini", "openrouter", "deepseek")
QUESTION = "A disk fails at 3 pm. Plan A copies every hour, plan B at noon. Which one loses less, and how much?"
SHORT, LONG = 400, 2_000
"""Tokens of a reply: what `--plan` takes it to have, and that of a model which thinks before."""
DRAFT = 200
"""Tokens of a workflow as the conductor writes it."""


async def price_answers(name: str, question: Question) -> list[str]:
    """Return the provider's row: its models, and the dollars of each kind of answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batuta.toml"
        path.write_text(
            "".join(
                f'[[workers]]\nid = "w{at}"\nprovider = "{name}"\nmodel = "{model}"\n'
                for at, model in enumerate(PROVIDERS[name].models)
            )
        )
        async with HttpTransport() as http:
            environ = {PROVIDERS[name].key_vars[0]: "a-key-that-is-never-sent"}
            config = await load_config(http, pool=str(path), environ=environ)
            prompt = describe_prompt(config.conductor, config.pool)
    pool, conductor = config.pool, getattr(config.conductor, "worker", None)
    assert prompt is not None and conductor is not None
    best = conductor.id
    second = next(w.id for w in pool if w.id != best)
    alone = Workflow((Step(subtask="", worker=best),))
    flow = Workflow(
        (
            Step(subtask="Answer the question.", worker=best),
            Step(subtask="Answer the question.", worker=second),
            Step(subtask="Compare both and answer.", worker=best, access=(0, 1)),
        )
    )
    told = (len(prompt.text) + len(question.text)) // CHARACTERS_PER_TOKEN
    draft = usage_cost(Usage(calls=1, input=told, output=DRAFT), conductor.price)
    costs = [
        estimate_workflow(question, alone, pool).cost.usd,
        estimate_workflow(question, flow, pool).cost.usd + draft.usd,
        estimate_workflow(question, flow, pool, output=LONG).cost.usd + draft.usd,
    ]
    names = ", ".join(f"`{worker.model}`" for worker in pool)
    return [name, names, f"`{conductor.model}`", *(f"${cost:.4f}" for cost in costs)]


def read_question() -> Question:
    """Return the question that was given, or one of 100 characters."""
    return Question.of(sys.argv[1] if len(sys.argv) > 1 else QUESTION)


async def main() -> None:
    print(f"prices of genai-prices {version('genai-prices')}; a reply has {SHORT} or {LONG} tokens")
    for name in HOSTED:
        print("| " + " | ".join(await price_answers(name, read_question())) + " |")


if __name__ == "__main__":
    anyio.run(main)
