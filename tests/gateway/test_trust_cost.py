"""A request that uses nothing of confidence, grounding, approval, rules and the audit trail executes nothing of them."""

import sys
from importlib import import_module
from pathlib import Path
from statistics import median

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
sys.path.insert(0, BENCH)
trust = import_module("trust")
sys.path.remove(BENCH)  # it has an `engine` too, as tests/ has

pytestmark = pytest.mark.anyio


async def test_a_keyed_request_executes_nothing_of_the_trail_and_of_what_is_not_set():
    variants = trust.variants()
    for name in ("plain", "audit trail"):
        found = await trust.count_variant(variants[name], 5, warm=3)
        assert min(whole for whole, _ in found) > 1000, "nothing was counted"
        # The trail's own task may wake during one of the requests.
        assert median(own for _, own in found) == 0, name
    found = await trust.count_variant(
        variants["each answer checked against its sources"], 5, warm=3
    )
    assert min(own for _, own in found) > 100, "the modules are elsewhere"
