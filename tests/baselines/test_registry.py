"""The one table of baselines: what it lists is documented, measured and served under one name."""

from pathlib import Path

import pytest

from batuta.baselines.registry import BASELINES
from batuta.core import Limits, Pool, Worker, WorkerId
from batuta.evals import Subject, find_system
from batuta.gateway.serving.baselines import baseline_models, unavailable_baselines

DOCS = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text("utf-8")
POOL = Pool(tuple(Worker(id=WorkerId(name), model=name, strength=0.5) for name in "abc"))


@pytest.mark.parametrize("row", BASELINES, ids=lambda row: row.name)
def test_a_row_is_documented_measured_and_served(row):
    assert f"`{row.default_name}`" in DOCS
    assert find_system(row.default_name, Subject(pool=POOL, clients={}, conductor=None))
    served = {model.name for model in baseline_models(POOL, Limits())}
    assert f"baseline/{row.default_name}" in served | unavailable_baselines().keys()


def test_a_row_is_built_or_fitted():
    assert len({row.name for row in BASELINES}) == len(BASELINES)
    for row in BASELINES:
        assert sum(map(bool, (row.fit_router, row.fit_chooser))) == 1 or row.build
        assert bool(row.number) == row.name.endswith(("@", "-"))
