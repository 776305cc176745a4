"""The page of results has no figure that its recipes do not have, and leaves no comparator out."""

import re
from pathlib import Path

import pytest

from batuta.lab.baselines.registry import BASELINES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
WITH_TABLES = [text for text in SECTIONS if re.search(r"\]\(\.\./recipes", text)][:-1]
SOURCE = re.compile(r"\]\((\.\./recipes/[^)#]+\.md)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def read_rows(text):
    """The rows of its tables, without heads, as cells."""
    lines = text.splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for before, line in zip(["", *lines], lines, strict=False)
        if line.startswith("|") and before.startswith("|") and not line.startswith("|---")
    ]


def numbers_of(text):
    return NUMBER.findall(text)


def missing_rows(section, sources):
    """The rows whose figures do not stand together in one line of the sources."""
    lines = [set(numbers_of(line)) for line in sources.splitlines() if line.startswith("|")]
    return [
        row
        for row in read_rows(section)
        if not any(set(numbers_of(" ".join(row[1:]))) <= line for line in lines)
    ]


@pytest.mark.parametrize("section", WITH_TABLES, ids=lambda text: text.splitlines()[0])
def test_each_row_stands_in_its_recipe(section):
    sources = "\n".join(
        (PAGE.parent / path).read_text(encoding="utf-8") for path in SOURCE.findall(section)
    )
    assert read_rows(section) and missing_rows(section, sources) == []


def test_a_figure_that_is_not_there_is_found():
    made = WITH_TABLES[0].replace("61.7", "62.7")
    source = (ROOT / "recipes/small-models/RESULT.md").read_text(encoding="utf-8")
    assert [row[0] for row in missing_rows(made, source)][:1] == ["what `tune` found"]


def test_every_comparator_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    names = [each.name.rstrip("@-") for each in BASELINES]
    assert [name for name in names if f"`{name}" not in text] == []
