"""What is in the library, and that workflows share the calls that they have in common."""

from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from batuta.core import MAX_STEPS, WorkerId
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.library import (
    Candidate,
    CandidateStep,
    StepRole,
    is_candidate,
    is_tie_break,
    neighbouring_candidates,
    write_workflow,
)
from batuta.usage import ASSUMED_PRICE
from lab.tune import worlds
from lab.tune.worlds import CHECKS, VOTES, every_candidate, grade

WORKERS = tuple(WorkerId(name) for name in ("ada", "ben", "cleo"))
CANDIDATES = st.sampled_from(every_candidate(WORKERS[:2], 4))


@rules(max_examples=rules().max_examples * 80 // 100, deadline=None)
@given(CANDIDATES)
def test_every_neighbour_is_a_workflow_of_the_library_one_change_away(candidate):
    near = list(neighbouring_candidates(candidate, WORKERS))
    assert candidate not in near and len(set(near)) == len(near)
    for other in near:
        assert is_candidate(other.steps) or (other.stops and is_tie_break(other.steps))
        assert 1 <= len(write_workflow(other)) <= MAX_STEPS
        assert abs(len(other) - len(candidate)) <= 2
    assert any(candidate in neighbouring_candidates(other, WORKERS) for other in near), (
        "the way back is open"
    )


def ask_three(*workers):
    return Candidate(
        tuple(CandidateStep(StepRole.SOLVE, WorkerId(name)) for name in workers), stops=True
    )


async def test_a_third_is_asked_only_where_two_differ_and_then_has_the_last_word():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(VOTES.pool, VOTES.clients(), grade, meter, unknown=ASSUMED_PRICE)
    one = ask_three("ben", "cleo", "ada")
    assert str(one) == "solve ben > solve cleo | solve ada"
    singles = [Candidate.single(WorkerId(name)) for name in ("ben", "cleo", "ada")]
    tasks = VOTES.tasks(60)
    assert await runner.run_all((task, each) for task in tasks for each in (one, *singles))
    assert meter.calls == 3 * len(tasks), "its calls are those of the workers alone"
    for task in tasks:
        found = runner.find_result(task, one)
        ben, cleo, ada = (runner.find_result(task, each) for each in singles)
        agree = ben.answer == cleo.answer
        assert (found.calls, found.agreed) == ((2, True) if agree else (3, False))
        assert found.answer == (cleo if agree else ada).answer
    asked = {runner.find_result(task, one).calls for task in tasks}
    assert asked == {2, 3}


def test_without_a_look_the_third_reads_all_and_decides():
    one = ask_three("ben", "cleo", "ada")
    plain = one.without_look()
    assert str(plain) == "solve ben > solve cleo > solve ada > decide ada" and not plain.stops
    assert write_workflow(plain).steps[-1].access == (0, 1, 2)
    assert plain.without_look() == plain
    with pytest.raises(ValueError, match="no workflow of the library"):
        Candidate(one.steps)
    with pytest.raises(ValueError, match="no workflow of the library"):
        ask_three("ben", "cleo", "ben")


def test_who_reads_whom():
    steps = (StepRole.PLAN, "ben"), (StepRole.SOLVE, "ada"), (StepRole.SOLVE, "ben"), (StepRole.DECIDE, "cleo"), (StepRole.CHECK, "ada")  # fmt: skip
    flow = write_workflow(Candidate(tuple(CandidateStep(r, WorkerId(w)) for r, w in steps)))
    assert [step.access for step in flow.steps] == [(), (0,), (0,), (1, 2), (0, 1, 2, 3)]
    alone = write_workflow(Candidate.single(WorkerId("ada")))
    assert alone.steps[0].subtask == "" and alone.steps[0].access == ()


async def test_a_longer_workflow_begins_with_the_call_that_a_shorter_one_made():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(CHECKS.pool, CHECKS.clients(), grade, meter, unknown=ASSUMED_PRICE)
    task = CHECKS.tasks(1)[0]
    ada, check = CandidateStep(StepRole.SOLVE, WorkerId("ada")), StepRole.CHECK
    assert await runner.run_all([(task, Candidate((ada,)))])
    assert meter.calls == 1
    longer = [Candidate((ada, CandidateStep(check, WorkerId(w)))) for w in ("ben", "cleo")]
    assert await runner.run_all((task, one) for one in longer)
    assert meter.calls == 3, "the solution was not asked for again"
    assert await runner.run_all((task, one) for one in longer)
    assert meter.calls == 3, "nothing is run twice"
    known = runner.find_result(task, longer[0])
    assert known is not None and known.calls == 2, "but it costs two calls when it is served"


def test_the_worlds_are_those_that_the_figures_were_measured_on():
    """A method is changed to do better in them, never they to suit a method."""
    text = Path(worlds.__file__).read_bytes()
    assert blake2b(text, digest_size=16).hexdigest() == "151f56f773a5db246051822fc99b55ff"


async def test_the_same_worker_asked_twice_at_once_gives_two_samples():
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(CHECKS.pool, CHECKS.clients(), grade, meter, unknown=ASSUMED_PRICE)
    twice = (CandidateStep(StepRole.SOLVE, WorkerId("ada")),) * 2
    vote = Candidate((*twice, CandidateStep(StepRole.DECIDE, WorkerId("ben"))))
    assert await runner.run_all([(CHECKS.tasks(1)[0], vote)])
    assert meter.calls == 3
