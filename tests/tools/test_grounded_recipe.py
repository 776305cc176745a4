"""The recipe that measures checkers of sources: from the first answer to its table, and on from where it was cut off."""

import importlib.util
import json
from pathlib import Path

import pytest

from fakes.openai import FakeOpenAI
from fakes.planted import found_pages, opened
from tools.test_grounded import check_prompt

pytestmark = pytest.mark.anyio
PLACE = Path(__file__).parents[2] / "recipes" / "grounded" / "measure.py"


def load_recipe():
    spec = importlib.util.spec_from_file_location("grounded_recipe", PLACE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(body):
    """Write from the pages; check by the pages' words, but `smol` finds everything supported."""
    prompt = body["messages"][-1]["content"]
    if "The statements:" not in prompt:
        page = found_pages(prompt)[0]
        return f"{opened(page.text)} ([{page.number}])."
    verdicts = check_prompt(prompt)
    if body["model"] == "smol":
        verdicts = [{**row, "supported": "yes", "where": [2]} for row in verdicts]
    return json.dumps({"verdicts": verdicts})


async def test_answers_are_written_checked_once_and_told_in_a_table(tmp_path):
    recipe = load_recipe()
    place = tmp_path / "answers.jsonl"
    async with FakeOpenAI(answer, strict_openai=False, key="", check=False) as models:
        await recipe.ask(15, models.origin, recipe.Record(place))
        asked = len(models.requests)
        assert asked == 15 * 4
        kept = place.read_text().splitlines()
        place.write_text("\n".join([*kept[:-1], kept[-1][:20]]))  # killed while it wrote
        await recipe.ask(15, models.origin, recipe.Record(place))
        assert len(models.requests) == asked + 1
    record = recipe.Record(place)
    lines = list(recipe.table(record))
    assert lines[0].startswith("15 answers, 5 with a planted statement.")
    exact, _, blind = (line.split(" | ") for line in lines[4:7])
    assert exact[:3] == ["| qwen-1.5b", "0", "5 of 5: 100 % (57 to 100)"]
    assert exact[3].startswith("5 of 5") and exact[4].startswith("0 of ")
    assert blind[0] == "| smol" and int(blind[2].split()[0]) < 5
    assert "http://127.0.0.1" not in place.read_text()


@pytest.mark.parametrize(
    ("statement", "truth"),
    [
        ("The Imola bridge was opened in 1850 [1].", "supported"),
        ("The Imola bridge was opened in 1850 (http://a.example/x).", "supported"),
        ("The Imola bridge was opened in 1850 [2].", "not judged"),
        ("The Imola bridge was opened in 1851.", "unsupported"),
        ("The Imola bridge was opened in 1850 [7].", "unsupported"),
        ("It is a fine bridge.", "not judged"),
        ("The Arlen bridge was opened in 1850.", "not judged"),
    ],
)
def test_a_writers_own_statements_are_judged_by_numbers_names_and_citations(statement, truth):
    recipe = load_recipe()
    sources = [
        recipe.Source(text="When was the Imola bridge opened?"),
        recipe.Source(text="The Imola bridge was opened in 1850.", url="http://a.example/x", number=1),
        recipe.Source(text="The Arlen bridge was opened in 1900.", url="http://a.example/y", number=2),
    ]  # fmt: skip
    assert recipe.judge_own(statement, sources) == truth
