"""The one table of baselines: what it lists is documented, measured and served under one name."""

from operator import methodcaller
from pathlib import Path

import pytest

from batuta.core import Limits, Pool, Worker, WorkerId
from batuta.gateway.serving.baselines import baseline_models, unavailable_baselines
from batuta.lab.baselines.registry import BASELINES
from batuta.lab.baselines.served import CASCADE
from batuta.lab.evals import Subject, find_system
from batuta.plugins import open_plugin, plugin_names

DOCS = (Path(__file__).parents[3] / "docs" / "baselines.md").read_text("utf-8")
POOL = Pool(tuple(Worker(id=WorkerId(name), model=name, strength=0.5) for name in "abc"))


@pytest.mark.parametrize("row", BASELINES, ids=lambda row: row.name)
def test_a_row_is_documented_measured_and_served(row):
    assert f"`{row.default_name}`" in DOCS
    assert find_system(row.default_name, Subject(pool=POOL, clients={}, conductor=None))
    served = {model.name for model in baseline_models(POOL, Limits())}
    assert f"baseline/{row.default_name}" in (served if row.build else unavailable_baselines())


def test_the_entry_points_are_the_rows():
    """A server lists the names of the entry points before it imports a method."""
    assert set(plugin_names("baseline")) == {row.default_name for row in BASELINES if row.build}
    learned = {row.name for row in BASELINES if row.build is None}
    assert set(plugin_names("learned-baseline")) == learned | {CASCADE}
    for name in plugin_names("baseline"):
        solver = open_plugin("baseline", name, methodcaller("__call__", name))
        assert solver.calls != 0


def test_a_row_is_built_or_fitted():
    assert len({row.name for row in BASELINES}) == len(BASELINES)
    for row in BASELINES:
        assert sum(map(bool, (row.fit_router, row.fit_chooser))) == 1 or row.build
        assert bool(row.number) == row.name.endswith(("@", "-"))
