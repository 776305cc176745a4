"""The selector of workflows: what it picks, what it falls back to, its folder."""

import time

import numpy as np
import orjson
import pytest

from batuta.conductors.workflow_selector import (
    WorkflowSelector,
    fit_reader,
    is_workflow_selector,
    open_workflow_selector,
    save_workflow_selector,
)
from batuta.core import Pool, Step, Worker, WorkerId, Workflow
from batuta.errors import ConfigError

A, B = WorkerId("a"), WorkerId("b")
POOL = Pool((Worker(id=A, model="m", strength=0.4), Worker(id=B, model="m", strength=0.6)))
ALONE, CHECKED, OTHER = (
    Workflow((Step(subtask="", worker=A),)),
    Workflow((Step(subtask="", worker=A), Step(subtask="Check it.", worker=B, access=(0,)))),
    Workflow((Step(subtask="", worker=B),)),
)
SUMS = [f"Add up {n} and {n + 7} and name the total." for n in range(30)]
ROADS = [f"Which road leads from village {n} to the harbour?" for n in range(30)]


@pytest.fixture(scope="module")
def selector():
    """Sums are checked, roads go to b."""
    reader = fit_reader([*SUMS, *ROADS], np.repeat([0, 1], 30))
    return WorkflowSelector(
        title="made up",
        reader=reader,
        groups=("sums", "roads"),
        workflows=(ALONE, CHECKED, OTHER),
        rank_glw=np.array([[[1, 0, 2]], [[2, 1, 0]]]),
        safest_w=np.array([0, 2, 1]),
        ease_gl=np.empty((2, 0), np.float32),
    )


def test_each_kind_gets_its_workflow_and_a_new_kind_the_safest(selector):
    assert selector.choose("Add up 400 and 2 and name the total.", POOL, 5) == CHECKED
    assert selector.choose("Which road leads from village 99 to the harbour?", POOL, 5) == OTHER
    assert selector.choose("Écris un poème sur la mer, s'il te plaît", POOL, 5) == ALONE
    assert selector.choose("", POOL, 5) in {ALONE, CHECKED, OTHER}


def test_what_cannot_be_run_is_passed_over(selector):
    assert selector.choose(SUMS[0], POOL, 1) == ALONE, "one step is allowed"
    assert selector.choose(SUMS[0], POOL.subset(("b",)), 5) == OTHER
    stranger = Pool((Worker(id=WorkerId("c"), model="m"),))
    assert selector.choose(SUMS[0], stranger, 5) == Workflow(
        (Step(subtask="", worker=WorkerId("c")),)
    )


def test_its_folder_gives_it_back(selector, tmp_path):
    save_workflow_selector(selector, tmp_path)
    again = open_workflow_selector(tmp_path)
    assert is_workflow_selector(tmp_path) and again.name == selector.name
    assert [again.choose(q, POOL, 5) for q in (*SUMS, *ROADS)] == [
        selector.choose(q, POOL, 5) for q in (*SUMS, *ROADS)
    ]


@pytest.mark.parametrize("damage", [
    {"workflows": []}, {"ranking": [[[7]]]}, {"groups": ["one"]}, {"kind": "selector"},
    {"reader": {}}, {"safest": [9]}, {"workflows": [[{"worker": "a", "subtask": "", "access": [3]}]]},
])  # fmt: skip
def test_a_damaged_folder_is_refused_in_a_sentence(selector, tmp_path, damage):
    save_workflow_selector(selector, tmp_path)
    card = orjson.loads((tmp_path / "batuta.json").read_bytes())
    (tmp_path / "batuta.json").write_bytes(orjson.dumps({**card, **damage}))
    with pytest.raises(ConfigError):
        open_workflow_selector(tmp_path)


def test_it_chooses_in_less_than_two_milliseconds(selector):
    def once(number):
        began = time.process_time()
        selector.choose(f"Add up {number} and 8 and name the total.", POOL, 5)
        return time.process_time() - began

    assert sorted(once(number) for number in range(50))[25] < 0.002
