"""The plan that a tuning leaves in its folder: another one is told from a damaged one."""

import pytest

from batuta.errors import ConfigError, StoreError
from batuta.lab.tune.context import TuneSettings
from batuta.lab.tune.opening import PLAN, TuneQuestions, keep_plan, open_runner
from batuta.lab.tune.spending import Allowance
from lab.tune.worlds import EXPERTS, grade

MINE = {"questions": "a", "workers": [["ada", "m"]], "seed": 0}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"seed": 1}, "with another seed: choose"),
        ({"questions": "b"}, "with other questions: choose"),
        ({"workers": [], "seed": 2}, "with other workers and another seed: choose"),
    ],
)
def test_what_differs_is_named(tmp_path, other, told):
    keep_plan(tmp_path, MINE)
    keep_plan(tmp_path, MINE)
    with pytest.raises(ConfigError, match=told):
        keep_plan(tmp_path, {**MINE, **other})


@pytest.mark.parametrize(
    "noted", [b"", b"\x93\x00\xff", b"[1]", b"7", b'{"seed": 0', b'{"seed": 0}']
)
def test_a_damaged_plan_is_said_to_be_damaged(tmp_path, noted):
    (tmp_path / PLAN).write_bytes(noted)
    with pytest.raises(ConfigError, match="is damaged: remove it"):
        keep_plan(tmp_path, MINE)


@pytest.mark.anyio
async def test_two_tunings_at_once_do_not_spend_the_budget_of_one_folder_twice(tmp_path):
    def opened():
        questions = TuneQuestions(name="experts", tasks=EXPERTS.tasks(30), grade=grade)
        settings = TuneSettings(allowance=Allowance(calls=10))
        return open_runner(EXPERTS.pool, EXPERTS.clients(), questions, settings, tmp_path)

    async with opened():
        with pytest.raises(StoreError, match=r"another tuning writes to .* another folder"):
            async with opened():
                pass
    async with opened() as (_, budget):
        assert budget.calls == 0
