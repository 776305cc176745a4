"""A workflow that exists is valid; its depth and width say what runs at the same time."""

import pytest

from batuta.core import Step, WorkerId, Workflow


def workflow(*access):
    return Workflow(
        tuple(Step(subtask="do", worker=WorkerId("a"), access=reads) for reads in access)
    )


@pytest.mark.parametrize(
    ("access", "depth", "width"),
    [
        ([()], 1, 1),
        ([(), ()], 1, 2),
        ([(), (0,)], 2, 1),
        ([(), (), (0, 1)], 2, 2),
        ([(), (0,), (0,), (1, 2)], 3, 2),
        ([(), (0,), (1,), (2,), (3,)], 5, 1),
    ],
)
def test_depth_is_the_longest_chain_and_width_the_fullest_level(access, depth, width):
    flow = workflow(*access)
    assert (flow.depth, flow.width, len(flow)) == (depth, width, len(access))


@pytest.mark.parametrize(
    ("access", "sentence"),
    [
        ([], "at least one step"),
        ([(0,)], "may name only earlier steps"),
        ([(), (1,)], "may name only earlier steps"),
        ([(), (-1,)], "may name only earlier steps"),
        ([(), (), (1, 0)], "strictly ascending"),
        ([(), (0, 0)], "strictly ascending"),
    ],
)
def test_what_is_no_workflow_cannot_be_made(access, sentence):
    with pytest.raises(ValueError, match=sentence):
        workflow(*access)


def test_who_reads_the_round_before_reads_all_of_its_own():
    worker = WorkerId("a")
    with pytest.raises(ValueError, match="reads the previous round but not all steps"):
        Workflow(
            (Step(subtask="a", worker=worker), Step(subtask="b", worker=worker, previous=True))
        )
