"""What a policy is taught to write, the grammar that it is served with lets it write."""

import ast
import re

import pytest
from hypothesis import given

from batuta.embedded.gguf_client import draft_grammar
from batuta.language import render_workflow
from laws.test_workflow_language import POOL, workflows

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[a-z]+\d*|\{\d+(?:,\d+)?\}|[()|?]|\s+')


def as_pattern(grammar):
    """The grammar, which has no recursion, as a regular expression."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines() if line)

    def translate(rule):
        parts = TOKEN.findall(rules[rule])
        assert "".join(parts) == rules[rule], "nothing in it that is not understood here"
        return f"(?:{''.join(map(translate_part, parts))})"

    def translate_part(part):
        if part.isspace():
            return ""
        if part[0] == '"':
            return f"(?:{re.escape(ast.literal_eval(part))})"
        return translate(part) if part[0].isalpha() else part

    return re.compile(translate("root"))


PATTERN = as_pattern(draft_grammar([worker.id for worker in POOL.workers]))


@given(workflows())
def test_every_workflow_can_be_written(workflow):
    assert PATTERN.fullmatch(render_workflow(workflow, POOL, names=True))


@pytest.mark.parametrize(
    "draft",
    [
        'subtasks = ["a"]\nmodel_id = ["nobody"]\naccess_list = [[]]',
        'subtasks = ["a"]\nmodel_id = ["w0"]\naccess_list = [[0]]',
        'subtasks = ["a", "b"]\nmodel_id = ["w0"]\naccess_list = [[]]',
        'subtasks = ["a\nb"]\nmodel_id = ["w0"]\naccess_list = [[]]',
        "subtasks = []\nmodel_id = []\naccess_list = []",
        f'subtasks = ["{"a" * 301}"]\nmodel_id = ["w0"]\naccess_list = [[]]',
    ],
)
def test_what_is_no_workflow_cannot(draft):
    assert not PATTERN.fullmatch(draft)
    assert PATTERN.fullmatch('w0 is best\nsubtasks = [""]\nmodel_id = ["w0"]\naccess_list = [[]]')
