"""A step that runs a program has one to run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Pool, Step, Worker, WorkerId, Workflow
from batuta.core.worker import PROGRAM
from batuta.errors import WorkflowError
from batuta.language.programs import provide_programs

A, P = WorkerId("a"), WorkerId("p")
POOL = Pool((Worker(id=A, model="m"), Worker(id=P, model="python", tags=(PROGRAM,))))
BLOCK = "Run this:\n```python\nprint(1)\n```"


def flow(*steps):
    return Workflow(tuple(Step(subtask=text, worker=who, access=read) for text, who, read in steps))


def test_a_step_that_reads_no_program_is_given_what_was_written_before_it():
    drafted = flow(("Plan.", A, ()), ("Write it.", A, ()), ("Run it.", P, ()), ("Say it.", A, (2,)))
    provided = provide_programs(drafted, POOL, "q")
    assert [step.access for step in provided.steps] == [(), (), (0, 1), (2,)]


def test_a_step_that_reads_one_stays_as_it_is():
    drafted = flow(("Plan.", A, ()), ("Write it.", A, ()), ("Run it.", P, (1,)))
    assert provide_programs(drafted, POOL, "q") == drafted


def test_what_another_program_printed_is_no_program():
    drafted = flow(("Write it.", A, ()), ("Run it.", P, (0,)), ("Run it again.", P, (1,)))
    assert provide_programs(drafted, POOL, "q").steps[2].access == (0, 1)


def test_a_program_that_nobody_writes_is_refused_in_one_sentence():
    with pytest.raises(WorkflowError, match="step 0 runs a program, and no step before it"):
        provide_programs(flow(("Calculate 3 * 4.", P, ()), ("Say it.", A, (0,))), POOL, "q")


@pytest.mark.parametrize(("subtask", "question"), [(BLOCK, "q"), ("Run it.", BLOCK)])
def test_code_in_the_subtask_or_the_question_is_a_program(subtask, question):
    drafted = flow((subtask, P, ()))
    assert provide_programs(drafted, POOL, question) == drafted


def test_a_later_round_may_run_a_program_of_the_round_before():
    drafted = Workflow((Step(subtask="Run it.", worker=P, previous=True),))
    assert provide_programs(drafted, POOL, "q") == drafted


STEPS = st.lists(st.tuples(st.sampled_from([A, P]), st.sets(st.integers(0, 4))), min_size=1)


@given(rows=STEPS.map(lambda rows: rows[:5]))
def test_afterwards_every_program_is_read_and_nothing_else_has_changed(rows):
    drafted = flow(
        *(
            ("x", who, tuple(sorted(at for at in read if at < n)))
            for n, (who, read) in enumerate(rows)
        )
    )
    try:
        provided = provide_programs(drafted, POOL, "q")
    except WorkflowError:
        assert rows[0][0] == P
        return
    for before, after in zip(drafted.steps, provided.steps, strict=True):
        assert set(before.access) <= set(after.access)
        if after.worker == P:
            assert any(provided.steps[at].worker == A for at in after.access)
        else:
            assert after == before
    assert provide_programs(provided, POOL, "q") == provided
