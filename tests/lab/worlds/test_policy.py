"""The shipped conductor: a policy that learned on these workers, served without torch."""

import json
import subprocess
import sys
import time

import anyio
import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Limits, Outcome, Plan, PlanningContext, Question
from batuta.embedded.policy import ConductorCard, open_policy
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.lab.worlds import draw_tasks, grade_answer, shipped_policy_folder

SEED = 90_210
"""No training and no evaluation draws these questions."""
LARGEST = 10 * 2**20


async def answered(conductor, asked):
    async with HttpTransport() as http:
        ensemble = await load_config(http, pool="rehearsal", conductor=conductor, time_scale=0.0)
        right, steps = 0.0, 0
        for number, task in enumerate(asked):
            run = await conduct(
                Question.of(task.question), ensemble.conductor, ensemble.pool, ensemble.clients,
                limits=Limits(), seed=number,
            )  # fmt: skip
            assert run.outcome in {Outcome.ANSWERED, Outcome.FALLBACK}
            right += grade_answer(task, run.answer or "").score or 0.0
            steps += len(run.steps)
    return right / len(asked), steps / len(asked)


async def test_it_beats_the_best_single_worker_by_far():
    asked = draw_tasks(None, 200, SEED)
    ours, steps = await answered(None, asked)
    alone, _ = await answered("best", asked)
    assert ours > alone + 0.08
    assert steps <= 4


async def test_nearly_every_draft_is_a_workflow():
    async with HttpTransport() as http:
        ensemble = await load_config(http, pool="rehearsal", time_scale=0.0)
        assert ensemble.conductor.name.startswith("embedded/rehearsal@")
        decisions = [
            await ensemble.conductor.plan(
                PlanningContext(question=Question.of(task.question), pool=ensemble.pool)
            )
            for task in draw_tasks(None, 60, SEED + 1)
        ]
    assert sum(isinstance(decision, Plan) for decision in decisions) >= 57


async def test_what_it_has_not_learned_it_does_not_write():
    async with HttpTransport() as http:
        ensemble = await load_config(http, pool="rehearsal", time_scale=0.0)
        for number, task in enumerate(draw_tasks(None, 20, SEED + 2)):
            one, many = [
                await conduct(
                    Question.of(task.question), ensemble.conductor, ensemble.pool, ensemble.clients,
                    limits=Limits(rounds=rounds), seed=number,
                )
                for rounds in (1, 3)
            ]  # fmt: skip
            assert many.answer == one.answer
            assert (many.outcome, many.usage) == (one.outcome, one.usage), "nothing more is spent"


def test_it_is_small_and_says_what_it_is():
    folder = shipped_policy_folder()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "simulated" in card and "recipes/rehearsal-conductor" in card


def test_serving_it_loads_no_torch():
    program = (
        "import sys\n"
        "from batuta.embedded.policy import open_policy\n"
        "from batuta.lab.worlds import shipped_policy_folder\n"
        "open_policy(shipped_policy_folder())\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_plan_takes_a_moment():
    model, card, _ = open_policy(shipped_policy_folder())
    from batuta.lab.worlds import rehearsal_pool
    from batuta.language import conductor_request

    async def plan(task):
        context = PlanningContext(question=Question.of(task.question), pool=rehearsal_pool())
        await model.complete(conductor_request(context, card.rendering, card.sampling))

    before = time.process_time()
    for task in draw_tasks(None, 10, SEED + 2):
        anyio.run(plan, task)
    assert (time.process_time() - before) / 10 < 0.25  # a plan takes about 0.02 s


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", 0), ("rounds", "two"), ("max_tokens", None), ("temperature", -1)]
)
def test_a_card_with_a_senseless_number_is_refused_by_its_name(tmp_path, name, value):
    card = json.loads((shipped_policy_folder() / "batuta.json").read_text(encoding="utf-8"))
    (tmp_path / "batuta.json").write_text(json.dumps(card | {name: value}), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"batuta\.json: {name} must be a number"):
        ConductorCard.read(tmp_path)


def test_a_card_whose_workers_are_no_list_is_a_sentence(tmp_path):
    card = json.loads((shipped_policy_folder() / "batuta.json").read_text(encoding="utf-8"))
    (tmp_path / "batuta.json").write_text(json.dumps(card | {"workers": 3}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"batuta\.json is not a conductor's card"):
        ConductorCard.read(tmp_path)
