"""Systems of one's own: a Python file beside the command is enough to measure one."""

import json

import pytest
from typer.testing import CliRunner

from batuta.errors import ConfigError
from batuta.lab.commands import evaluate
from batuta.lab.evals.systems import is_own_system, open_own_system

MINE = '''
from batuta.core import Plan, Step, Workflow
from batuta.lab.baselines.single import SingleWorker


class First:
    """Asks the pool's {place} worker."""

    name = "first"

    async def plan(self, context, listener=None):
        return Plan(Workflow((Step(subtask="", worker=context.pool.ranked()[{place}].id),)))


made = First()
alone = SingleWorker()


def fit_best(history, *, seed=0):
    return SingleWorker(history.best_worker())


def fit_nothing(history):
    raise ValueError("nothing to learn")


class Nameless:
    async def plan(self, context, listener=None):
        return None


class Raising:
    name = "raising"

    async def plan(self, context, listener=None):
        raise ValueError("boom")


class Leaving(Raising):
    async def plan(self, context, listener=None):
        raise SystemExit(3)


class Texts:
    name = "texts"
    calls = None

    async def answer(self, question, context, seed):
        return "42"


class Useless:
    name = "useless"


def needs(more):
    return more
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("{place}", "0"))
    return path


@pytest.fixture
def measure(tmp_path, mine):
    def run(*systems, out="out"):
        record = [
            {"question": f"{n}?", "workers": {"good": {"score": n % 4 > 0}, "bad": {"score": 0}}}
            for n in range(60)
        ]
        path = tmp_path / "o.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in record))
        names = ",".join(f"{mine}:{one}" if one[0] != "=" else one[1:] for one in systems)
        done = CliRunner().invoke(
            evaluate.app,
            ["--tasks", f"recorded:{path}", "--systems", names, "--json", "--out", str(tmp_path / out)],
        )  # fmt: skip
        if done.exit_code:
            error = done.exception
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            assert isinstance(error, ConfigError | SystemExit)
            return done.stderr if isinstance(error, SystemExit) else str(error)
        found = json.loads(done.stdout)["systems"]
        return {name.removeprefix(f"{mine}:"): one["accuracy"] for name, one in found.items()}

    return run


def test_conductors_solvers_and_fitted_ones_are_measured(measure):
    found = measure("First", "made", "alone", "fit_best", "=good", "=bad")
    good = found.pop("good")
    assert found.pop("bad") == 0 < good
    assert found == dict.fromkeys(("First", "made", "alone", "fit_best"), good)


def test_results_are_those_of_the_file_as_it_is(measure, mine):
    assert measure("First")["First"] > 0
    mine.write_text(MINE.replace("{place}", "-1"))
    assert measure("First")["First"] == 0


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("absent", "has no absent"),
        ("Nameless", "has no attribute `name`"),
        ("Useless", "neither `plan` nor `answer`"),
        ("needs", "cannot be created: TypeError"),
        ("fit_nothing", "nothing to learn"),
        ("Raising", "failed on the question own/"),
        ("Raising", "ValueError: boom ("),
        ("Leaving", "SystemExit: 3"),
        ("Texts", "returns str as its answer, not a Run"),
    ],
)
def test_what_is_no_system_is_told_in_a_sentence(measure, member, told):
    found = measure(member)
    assert isinstance(found, str) and told in " ".join(found.split())


def test_a_file_that_fails_or_is_not_there_is_told(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    with pytest.raises(ConfigError, match=r"broken\.py cannot be run: ModuleNotFoundError"):
        open_own_system(f"{broken}:x")
    with pytest.raises(ConfigError, match="there is no file"):
        open_own_system("absent.py:x")


def test_a_file_is_executed_once_however_many_systems_it_has(measure, mine, tmp_path):
    """It may load a model, and an evaluation looks its systems up several times."""
    counted = f"open({str(tmp_path / 'log')!r}, 'a').write('x')\n"
    mine.write_text(counted + MINE.replace("{place}", "0"))
    assert measure("First", "made", "fit_best")["First"] > 0
    assert (tmp_path / "log").read_text() == "x"


def test_a_file_that_ends_the_process_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(0)")
    with pytest.raises(ConfigError, match=r"script\.py cannot be run: SystemExit: 0"):
        open_own_system(f"{script}:x")


def test_a_dataclass_with_postponed_annotations_is_a_system(measure, mine):
    header = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    postponed = """

@dataclass(frozen=True)
class Postponed:
    name: str = "postponed"

    async def plan(self, context, listener=None):
        return await First().plan(context)
"""
    mine.write_text(header + MINE.replace("{place}", "0") + postponed)
    assert measure("Postponed")["Postponed"] > 0


def test_other_names_are_no_files():
    assert is_own_system("a/mine.py:Mine")
    assert not any(map(is_own_system, ("chain/a>b", "cascade@0.001", "mine.py", "x.py:a b")))
