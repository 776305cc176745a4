"""Names and what they stand for."""

from dataclasses import replace
from typing import Any

import pytest
from evaluated import subject

from batuta.config.conductors import PATTERNS, open_patterns
from batuta.errors import ConfigError
from batuta.guardrails import Guardrails
from batuta.guardrails.grounded import GroundedAction, GroundedPolicy
from batuta.lab.baselines import SingleWorker
from batuta.lab.evals import find_system, system_names
from batuta.lab.evals.learned_methods import LEARNED_METHODS
from batuta.lab.evals.served_solver import ServedSolver
from batuta.lab.evals.systems import runnable_systems

KNOWN = system_names(subject())


@pytest.mark.parametrize("name", KNOWN)
def test_every_name_is_a_system_under_that_name(name):
    found = find_system(name, subject())
    assert found.name == name
    assert found.solver.name


def test_patterns_are_measured_by_their_names_and_are_no_part_of_all():
    base = subject()
    measured = replace(base, presets=open_patterns(base.pool, base.clients))
    names = [f"pattern/{name}" for name in PATTERNS]
    assert [find_system(name, measured).name for name in names] == names
    assert not {*names}.intersection(runnable_systems(measured))


def test_calls_that_a_pattern_makes_itself_are_limited_and_cached_too():
    class Limit:
        is_spent = False

        def limit_client(self, client, worker):
            return (worker.id, client)

    base = subject()
    presets = open_patterns(base.pool, base.clients)
    limited = replace(base, presets=presets).with_call_limit(Limit())  # pyright: ignore[reportArgumentType]
    asking: list[Any] = [
        one.conductor for one in limited.presets if hasattr(one.conductor, "clients")
    ]
    assert len(asking) == 2
    assert all(one.clients == limited.clients != base.clients for one in asking)


def test_no_two_systems_are_filed_under_the_same_method():
    rehearsed = subject(simulated=True)
    methods = {n: find_system(n, rehearsed).solver.name for n in system_names(rehearsed)}
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
    assert find_system(name, subject()).solver.calls == calls


@pytest.mark.parametrize(
    "name", ["opera", "self-consistency@0", "best-of-", "pass@x", "best-of-1000", ""]
)
def test_an_unknown_name_is_told_with_the_known_ones(name):
    with pytest.raises(
        ConfigError,
        match=r"there is no system .*; (choose among: .* ultra\+recursion|did you mean )",
    ):
        find_system(name, subject())


def test_the_hand_written_conductor_belongs_to_the_rehearsal():
    assert "hand-written" not in KNOWN
    with pytest.raises(ConfigError):
        find_system("hand-written", subject())
    assert find_system("prompted", subject()).needs_calibration
    found = find_system("prompted", subject(simulated=True))
    assert found.solver.name == "rehearsal/hand-written" and not found.needs_calibration


def test_what_they_need_and_are():
    found = {name: find_system(name, subject()) for name in KNOWN}
    assert {n for n, s in found.items() if s.is_reference} == {"oracle", "pass@5", "skill-oracle@5"}
    assert {n for n, s in found.items() if s.fitter} == {*LEARNED_METHODS, "cascade@0.001"}
    assert {n for n, s in found.items() if s.worker} == {"good", "fair", "bad"}
    assert {n for n, s in found.items() if s.has_conductor} == {
        "random", "prompted", "ultra", "ultra+recursion", "ultra-solve-only",
        "ultra-shuffled-access", "ultra-best-worker",
    }  # fmt: skip
    assert not found["ultra"].needs_calibration and found["ultra-best-worker"].needs_calibration
    assert isinstance(found["good"].solver, SingleWorker)
    recursive = found["ultra+recursion"].solver
    assert isinstance(recursive, ServedSolver) and recursive.system.limits.rounds == 2


GROUNDED = Guardrails(
    grounded=GroundedPolicy(
        name="sources", worker=subject().pool.workers[0], action=GroundedAction.REFUSE
    )
)


@pytest.mark.parametrize("name", ["vote", "moa", "best-of-3", "self-consistency@5"])
def test_what_the_server_refuses_under_a_policy_of_sources_is_not_measured_under_it(name):
    checked = replace(subject(), guardrails=GROUNDED)
    assert find_system(name, subject()).name == name
    with pytest.raises(ConfigError, match="sources cannot check them, so the server refuses it"):
        find_system(name, checked)
    assert name not in runnable_systems(checked)
    assert {"ultra", "oracle"} <= {*runnable_systems(checked)}
