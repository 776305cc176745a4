"""The plan that a tuning leaves in its folder: another one is told from a damaged one."""

import pytest

from batuta.errors import ConfigError
from batuta.lab.tune.opening import PLAN, keep_plan

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
