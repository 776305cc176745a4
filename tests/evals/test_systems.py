"""Names and what they stand for."""

import pytest
from stage import subject

from batuta.baselines import Conducted, Single
from batuta.errors import ConfigError
from batuta.evals import names, system
from batuta.evals.fitted import FITTED

KNOWN = names(subject())


@pytest.mark.parametrize("name", KNOWN)
def test_every_name_is_a_system_under_that_name(name):
    found = system(name, subject())
    assert found.name == name
    assert found.solver.name


def test_no_two_systems_are_filed_under_the_same_method():
    rehearsed = subject(simulated=True)
    methods = {n: system(n, rehearsed).solver.name for n in names(rehearsed)}
    doubles = {"prompted", "hand-written"}
    filed = [method for name, method in methods.items() if name not in doubles]
    assert len(set(filed)) == len(filed)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("self-consistency@9", 9),
        ("best-of-3", 4),
        ("pass@12", 12),
        ("moa", 13),
        ("moa-8", 8),
        ("pipeline", 5),
        ("self-reflection", 5),
        ("best-single", 1),
        ("good", 1),
        ("ultra", None),
    ],
)
def test_calls(name, calls):
    assert system(name, subject()).solver.calls == calls


@pytest.mark.parametrize(
    "name", ["opera", "self-consistency@0", "best-of-", "pass@x", "best-of-1000", ""]
)
def test_an_unknown_name_is_told_with_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"there is no system .* ultra\+recursion"):
        system(name, subject())


def test_the_hand_written_conductor_belongs_to_the_rehearsal():
    assert "hand-written" not in KNOWN
    with pytest.raises(ConfigError):
        system("hand-written", subject())
    assert system("prompted", subject()).calibrated
    played = system("prompted", subject(simulated=True))
    assert played.solver.name == "rehearsal/hand-written" and not played.calibrated


def test_what_they_need_and_are():
    found = {name: system(name, subject()) for name in KNOWN}
    assert {n for n, s in found.items() if s.reference} == {"oracle", "pass@5", "skill-oracle@5"}
    assert {n for n, s in found.items() if s.fitted} == {*FITTED, "cascade@0.001"}
    assert {n for n, s in found.items() if s.worker} == {"good", "fair", "bad"}
    assert {n for n, s in found.items() if s.plans} == {
        "random", "prompted", "ultra", "ultra+recursion", "ultra-solve-only",
        "ultra-shuffled-access", "ultra-best-worker",
    }  # fmt: skip
    assert not found["ultra"].calibrated and found["ultra-best-worker"].calibrated
    assert isinstance(found["good"].solver, Single)
    recursive = found["ultra+recursion"].solver
    assert isinstance(recursive, Conducted) and recursive.rounds == 2
