"""Converts rows of HumanEval, MBPP, BigCodeBench, LiveCodeBench, LeetCode and CRUXEval.

The code graders read this JSON from `Task.data`:

- code-stdin: `{"tests": [{"input", "output"}]}`, with a program's input and output.
- code-functional: the same with `"entry"`, such as `Solution().solve`. An input has one JSON value
  per argument, each on its own line; an output is one JSON value.
- code-assert: `{"preamble", "tests"}`, the source before and after the program; the tests raise an
  error if one fails. With `"entry"`, the preamble's definition of that name is only a stub.

The first two may have `"preamble"`, source before the program, and `"tolerance"`, the relative or
absolute error allowed in numbers with decimals; no benchmark here has them.
"""

from __future__ import annotations

import ast
import base64
import pickletools
import re
import warnings
import zlib
from typing import Any

import orjson

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.dataset import as_json
from batuta.lab.tasks.datasets.rows import MAX_ROW_BYTES, Row

CODE_BLOCK_INSTRUCTION = "Answer with the whole program in one Python code block."

LEVELS = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
"""The difficulty of a contest problem by the name of its level."""

_RUN_UNITTEST = """
import sys as _sys
import unittest as _unittest
_cases = _unittest.defaultTestLoader.loadTestsFromTestCase(TestCases)
_result = _unittest.TextTestRunner(stream=_sys.stderr).run(_cases)
assert _result.testsRun > len(_result.skipped), "no test case ran"
assert _result.wasSuccessful() and not _result.expectedFailures, "a test case failed"
"""


def convert_human_eval(row: Row) -> Task:
    """Convert a problem of HumanEval: a function to complete."""
    start = row["prompt"].rstrip()
    question = f"Complete this function.\n\n```python\n{start}\n```\n\n{CODE_BLOCK_INSTRUCTION}"
    tests = f"{row['test']}\ncheck({row['entry_point']})\n"
    id_ = f"humaneval/{row['task_id'].rpartition('/')[2]}"
    return _assertion_task(id_, question, tests, preamble=row["prompt"], entry=row["entry_point"])


def convert_mbpp(row: Row) -> Task:
    """Convert a problem of MBPP; as published, the question shows all but the challenge tests."""
    tests: list[str] = row["test_list"]
    shown = "\n".join(tests)
    question = f"{row['text']}\nIt must pass these tests:\n\n{shown}\n\n{CODE_BLOCK_INSTRUCTION}"
    after = "\n".join((row["test_setup_code"], *tests, *row["challenge_test_list"]))
    return _assertion_task(
        f"mbpp/{row['task_id']}", question, f"{after}\n", entry=_called_function(row)
    )


def _called_function(row: Row) -> str:
    """Return the name of the reference program's function that the first test calls; "" if none."""
    defined = re.findall(r"^def[ \t]+(\w+)", row.get("code") or "", re.MULTILINE)
    called: list[str] = re.findall(r"\w+", row["test_list"][0])
    return next((name for name in called if name in defined), "")


def convert_big_code_bench(row: Row) -> Task:
    """Convert a BigCodeBench task with its unit tests; the tags name its libraries."""
    asked = row["instruction"] if "instruction" in row else row["instruct_prompt"]
    named = row["libs"]
    libraries: list[str] = (
        orjson.loads(named.replace("'", '"')) if isinstance(named, str) else named
    )
    id_ = f"bigcodebench/{row['task_id'].rpartition('/')[2]}"
    tags = tuple(f"library:{library}" for library in libraries)
    question, tests = f"{asked.strip()}\n\n{CODE_BLOCK_INSTRUCTION}", row["test"] + _RUN_UNITTEST
    # the tests use what the prompt imports
    preamble = (row.get("prompt") or row.get("complete_prompt") or "") + _import_lines(row["test"])
    entry = row.get("entry_point", "task_func")
    return _assertion_task(id_, question, tests, preamble=preamble, entry=entry, tags=tags)


def _import_lines(tests: str) -> str:
    """Return the imports of the tests, on which some reference programs rely."""
    with warnings.catch_warnings(action="ignore"):  # the benchmark has invalid escapes
        body = ast.parse(tests).body
    found = (n for n in body if isinstance(n, ast.Import | ast.ImportFrom))
    return "".join(f"\n{ast.unparse(node)}" for node in found) + "\n"


def convert_leet_code(row: Row) -> Task:
    """Convert a problem of LeetCodeDataset."""
    meta: Row = row.get("meta") or {}
    # the train file has other field names than the test file
    statement = row.get("problem_description") or meta["question_title"]
    starter = row.get("starter_code") or meta["lang_code"]
    level = row.get("difficulty") or meta["difficulty"]
    question = (
        f"{statement.strip()}\n\n```python\n{starter.rstrip()}\n```\n\n{CODE_BLOCK_INSTRUCTION}"
    )
    tests = f"{row['test']}\ncheck({row['entry_point']})\n"
    difficulty = LEVELS.get(level.lower())
    id_ = f"leetcode/{row['task_id']}"
    return _assertion_task(id_, question, tests, preamble=row["prompt"], difficulty=difficulty)


CALL_QUESTION = (
    "What does this call return? End with a line that begins with `Answer:` and gives the value in "
    "Python's notation."
)
"""This question has no example, because small models repeated `[1, 2]` word for word."""


def convert_crux_eval(row: Row) -> Task:
    """Convert a problem of CRUXEval, which asks for the value that a function returns."""
    call = f"{row['code']}\n\nf({row['input']})"
    question = f"```python\n{call}\n```\n\n{CALL_QUESTION}"
    id_ = TaskId(f"cruxeval/{row['id'].rpartition('_')[2]}")
    return Task(id=id_, question=question, target=row["output"], grader="exact", tags=("code",))


def convert_live_code_bench(row: Row) -> Task:
    """Convert a problem of LiveCodeBench with its public tests and any hidden ones."""
    shown: Any = row["public_test_cases"]
    tests: list[Row] = orjson.loads(shown) if isinstance(shown, str) else shown
    tests = [*tests, *_unpack_hidden_tests(row.get("private_test_cases"))]
    metadata: Any = row["metadata"]
    facts: Row = orjson.loads(metadata) if isinstance(metadata, str) else metadata
    data: dict[str, Any] = {
        "tests": [{"input": test["input"], "output": test["output"]} for test in tests]
    }
    functional = tests[0]["testtype"] == "functional"
    if functional:
        data["entry"] = f"Solution().{facts['func_name']}"
    return Task(
        id=TaskId(f"livecodebench/{row['question_id']}"),
        question=_contest_question(row, functional=functional),
        target="",
        grader="code-functional" if functional else "code-stdin",
        tags=("code", row["platform"], f"date:{row['contest_date'][:10]}"),
        difficulty=LEVELS.get(row["difficulty"]),
        data=as_json(data),
    )


def _contest_question(row: Row, *, functional: bool) -> str:
    if functional:
        starter = row["starter_code"].rstrip()
        form = f"Complete this class.\n\n```python\n{starter}\n```\n\n{CODE_BLOCK_INSTRUCTION}"
    else:
        form = (
            f"The program reads standard input and writes standard output. {CODE_BLOCK_INSTRUCTION}"
        )
    return f"{row['question_content'].strip()}\n\n{form}"


def _unpack_hidden_tests(encoded: str | None) -> list[Row]:
    """Decode hidden tests: JSON, or a pickled string of JSON, packed with zlib, in base64."""
    if not encoded:
        return []
    if encoded.lstrip().startswith("["):
        return orjson.loads(encoded)
    packed = zlib.decompressobj()
    try:
        pickled = packed.decompress(base64.b64decode(encoded), MAX_ROW_BYTES)
    except zlib.error as error:
        raise ValueError(f"packed tests are damaged: {error}") from None
    if packed.unconsumed_tail:
        raise ValueError(f"packed tests are longer than {MAX_ROW_BYTES >> 20} MiB")
    return orjson.loads(_pickled_text(pickled))


def _pickled_text(pickled: bytes) -> str:
    """Return a pickled string without unpickling, which could execute code."""
    values = [
        value
        for code, value, _ in pickletools.genops(pickled)
        if code.name not in {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "STOP"}
    ]
    if len(values) != 1 or not isinstance(values[0], str):
        raise ValueError("packed tests are not a pickled string")
    return values[0]


def _assertion_task(
    id_: str,
    question: str,
    tests: str,
    *,
    preamble: str = "",
    entry: str = "",
    tags: tuple[str, ...] = (),
    difficulty: float | None = None,
) -> Task:
    data = as_json({"preamble": preamble, "tests": tests} | ({"entry": entry} if entry else {}))
    return Task(
        id=TaskId(id_),
        question=question,
        target="",
        grader="code-assert",
        tags=("code", *tags),
        difficulty=difficulty,
        data=data,
    )
