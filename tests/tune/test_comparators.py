"""Every comparator learns within its dollars, and finds in a plain world what it can find."""

import pytest

from batuta.core.usage import ASSUMED_PRICE
from batuta.evals.task_sets import task_family
from batuta.tune.comparators import COMPARATORS, ComparatorContext
from batuta.tune.judge import describe_system
from batuta.tune.library import Candidate
from batuta.tune.player import CallMeter, Player
from tune.worlds import CHECKS, EXPERTS, grade


@pytest.mark.parametrize("name", COMPARATORS)
@pytest.mark.parametrize("usd", [0.004, 0.02])
async def test_it_learns_within_its_dollars_and_answers(name, usd):
    meter = CallMeter(ASSUMED_PRICE)
    player = Player(CHECKS.pool, CHECKS.clients(), grade, meter, unknown=ASSUMED_PRICE)
    context = ComparatorContext(
        player=player, tasks=CHECKS.tasks(250), family=task_family, usd=usd, seed=1
    )
    entry = await COMPARATORS[name](context)
    assert 0 < float(meter.usd) <= usd + 0.001, "but for what a batch cost more than was expected"
    fresh = CHECKS.tasks(20, seed=4)
    assert await player.play_all((task, entry) for task in fresh)
    figures = describe_system(name, player, fresh, {task.id: entry for task in fresh})
    assert figures.questions == 20 and figures.calls >= 1


async def test_the_best_single_worker_is_found_and_the_router_beats_him_where_there_are_experts():
    shares = {}
    for name in ("best single", "k-means router"):
        meter = CallMeter(ASSUMED_PRICE)
        player = Player(EXPERTS.pool, EXPERTS.clients(), grade, meter, unknown=ASSUMED_PRICE)
        context = ComparatorContext(
            player=player, tasks=EXPERTS.tasks(200), family=task_family, usd=0.05
        )
        entry = await COMPARATORS[name](context)
        if name == "best single":
            assert entry == Candidate.single("ada")  # pyright: ignore[reportArgumentType]
        fresh = EXPERTS.tasks(150, seed=5)
        assert await player.play_all((task, entry) for task in fresh)
        plays = {task.id: entry for task in fresh}
        shares[name] = describe_system(name, player, fresh, plays).share
    assert shares["k-means router"] > shares["best single"] + 0.15
