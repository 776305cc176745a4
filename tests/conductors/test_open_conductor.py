"""Conductors by name: workers in a row."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.prompted import ConductorOptions
from batuta.config.conductors import open_conductor
from batuta.core import Plan, PlanningContext, Pool, Question, Worker, WorkerId
from batuta.core.conductor import conductor_worker, describe_prompt
from batuta.errors import ConfigError
from batuta.language import PromptOptions

pytestmark = pytest.mark.anyio
POOL = Pool(tuple(Worker(id=WorkerId(one), model=one) for one in ("coder", "facts", "python")))


async def test_workers_in_a_row_each_read_everything_before_them():
    chain = open_conductor("chain/facts > coder>python", POOL, {}, ConductorOptions())
    decision = await chain.plan(PlanningContext(question=Question.of("How many?"), pool=POOL))
    assert isinstance(decision, Plan)
    steps = decision.workflow.steps
    assert [(step.worker, step.access) for step in steps] == [
        ("facts", ()),
        ("coder", (0,)),
        ("python", (0, 1)),
    ]
    assert steps[0].subtask == ""
    assert all(step.subtask for step in steps[1:])


@pytest.mark.parametrize("name", ["chain/", "chain/coder>", "chain/coder>nobody"])
def test_a_chain_of_workers_that_are_not_there_is_refused(name):
    with pytest.raises(ConfigError, match="there is no conductor"):
        open_conductor(name, POOL, {}, ConductorOptions())


async def test_a_workflow_in_a_file_is_played_for_every_question(tmp_path):
    place = tmp_path / "review.txt"
    place.write_text(
        'model_id = ["coder", 2]\nsubtasks = ["Write it.", ""]\naccess_list = [[], ["all"]]'
    )
    opened = open_conductor(str(place), POOL, {}, ConductorOptions())
    decision = await opened.plan(PlanningContext(question=Question.of("How many?"), pool=POOL))
    assert isinstance(decision, Plan)
    assert opened.name.startswith("workflow/review@")
    place.write_text(place.read_text().replace("Write", "Read"))
    assert open_conductor(str(place), POOL, {}, ConductorOptions()).name != opened.name
    assert [(step.worker, step.subtask, step.access) for step in decision.workflow.steps] == [
        ("coder", "Write it.", ()),
        ("python", "", (0,)),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'model_id = ["nobody"]\nsubtasks = [""]\naccess_list = [[]]',
            "no workflow over this pool",
        ),
        ("Solve it.", "no workflow over this pool"),
        ("x" * 100_001, "longer than 100000"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_without_a_workflow_is_refused(tmp_path, text, reason):
    place = tmp_path / "review.txt"
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=reason):
        open_conductor(str(place), POOL, {}, ConductorOptions())


@pytest.mark.parametrize("compact", [False, True])
def test_a_conductor_that_prompts_a_model_says_whose_it_is_and_what_it_is_told(compact):
    options = ConductorOptions(rendering=PromptOptions(compact=compact, prices=True))
    opened = open_conductor("facts", POOL, {WorkerId("facts"): ScriptedClient(["x"])}, options)
    worker, prompt = conductor_worker(opened), describe_prompt(opened, POOL)
    assert worker is not None
    assert worker.id == "facts"
    assert prompt is not None
    assert list(prompt.cards) == [worker.id for worker in POOL]
    assert all(line in prompt.text for lines in prompt.cards.values() for line in lines)
    assert prompt.shown == ("" if compact else ", shown their cards and prices")


def test_a_conductor_that_asks_no_model_says_neither():
    chain = open_conductor("chain/facts>coder", POOL, {}, ConductorOptions())
    assert conductor_worker(chain) is None
    assert describe_prompt(chain, POOL) is None
    assert conductor_worker(None) is None
