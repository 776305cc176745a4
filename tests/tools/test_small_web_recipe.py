"""The recipe that asks small models over the small web: every way of asking, against scripted models."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fakes.openai import FakeOpenAI
from fakes.server import Said

pytestmark = pytest.mark.anyio
PLACE = Path(__file__).parents[2] / "recipes" / "small-web" / "measure.py"


def load_recipe():
    spec = importlib.util.spec_from_file_location("small_web_recipe", PLACE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def names_in(question):
    return re.findall(r"[Tt]he (\w+ \w+(?: \d)?)(?= and|,|:| opened)", question)


def answer(body):
    """Search where it may, and say what the newest pages say of the names in the question."""
    question = next(said["content"] for said in body["messages"] if said["role"] == "user")
    asked = re.search(r"[^\n]*End with a line[^\n]*", question)[0]
    shown = "\n".join(str(said.get("content")) for said in body["messages"])
    offered = {tool["function"]["name"] for tool in body.get("tools") or []}
    if "web_search" in offered and body["messages"][-1]["role"] != "tool":
        calls = ((f"c{n}", "web_search", {"query": name}) for n, name in enumerate(names_in(asked)))
        return Said(calls=tuple(calls))
    years = [
        found[1]
        for name in names_in(asked)
        if (found := re.search(rf"The {name} was opened in (\d+)", shown))
    ]
    years = years if "last of them" not in asked else [max(years, default="?")]
    return f"Answer: {', '.join(years) or 'unknown'}"


async def test_each_question_is_asked_each_way_once(tmp_path):
    recipe = load_recipe()
    place = tmp_path / "answers.jsonl"
    async with FakeOpenAI(answer, strict_openai=False, key="", check=False) as models:
        await recipe.ask(6, models.origin, recipe.Record(place))
        asked = len(models.requests)
        await recipe.ask(6, models.origin, recipe.Record(place))
        assert len(models.requests) == asked
    record = recipe.Record(place)
    assert len(record.rows) == 36 and recipe.complete_questions(record) == list(range(6))
    assert not [row for row in record.rows.values() if row["error"]]
    lines = list(recipe.table(record))
    rows = {tuple(line.split(" | ")[:2]): line.split(" | ")[2:] for line in lines[4:]}
    assert rows["| qwen-1.5b", "alone"][0].startswith("0: 0 %")
    assert rows["| qwen-1.5b", "tool"][0].startswith("6: 100 %")
    assert rows["| qwen-1.5b", "conducted"][1] == "2 of 2"
    assert rows["| qwen-1.5b", "alone"][6:9] == ["1.0", "0.0", "0.0"]
    assert rows["| qwen-1.5b", "tool"][6:9] == ["2.0", "2.0", "0.0"]
    assert rows["| qwen-1.5b", "conducted"][6:8] == ["1.0", "1.0"]


def test_the_questions_are_drawn_once_and_graded_by_their_years():
    recipe = load_recipe()
    asked = recipe.draw_questions()
    assert asked == recipe.draw_questions() and len({each.text for each in asked}) > 110
    assert [len(each.wanted) for each in asked[:3]] == [1, 2, 1]
    assert recipe.is_right("In 1850.\nAnswer: 1850", frozenset({"1850"}))
    assert not recipe.is_right("Answer: 1850 or 1851", frozenset({"1850"}))
    assert not recipe.is_right("It was 1850.\nAnswer: unknown", frozenset({"1850"}))
    assert not recipe.is_right(None, frozenset({"1850"}))
