"""What the stage that rewrites says where nothing is rewritten."""

from types import SimpleNamespace
from typing import Any

import pytest

from batuta.distribution import install_hint
from batuta.lab.tune.context import TuneSettings
from batuta.lab.tune.rewriting import rewrite_most_used
from batuta.lab.tune.spending import Allowance


@pytest.mark.parametrize("lacks", [True, False])
async def test_who_wants_no_rewriting_is_not_told_to_install_it(lacks):
    told = []
    context: Any = SimpleNamespace(
        settings=TuneSettings(allowance=Allowance(calls=1), lacks_rewriting=lacks),
        report=lambda stage, said: told.append(said),
    )
    result: Any = SimpleNamespace(nominees={"ultra": object()})
    assert await rewrite_most_used(context, result) is result
    [said] = told
    assert said.startswith("skipped: ")
    assert ("gepa is not installed" in said and install_hint("tune") in said) == lacks
