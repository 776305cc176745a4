"""The journeys in a real browser: light and dark, at three widths, by mouse and by keyboard alone.

Each is tried once in the ordinary tests, with a width, a theme and a hand that take turns; all
combinations are `long`. `BATUTA_SHOTS` names a folder for pictures of the screens.
"""

import json
import os
import time
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Cost, Worker, WorkerId
from batuta.errors import ProviderOverloadedError
from fakes.server import KEY
from gateway.ui.edited_pool import KEY_VARIABLE, serve_edited_pool
from gateway.ui.journeys import (
    CAUSE,
    JOURNEYS,
    WITH_KEYS,
    Visitor,
    World,
    add_and_test_a_worker,
    find_yesterdays_dearest,
    post_chat,
)
from gateway.ui.page_server import QUESTION, PageServer
from store.strategies import make_run

WAYS = list(product((1440, 1280, 400), ("light", "dark"), (True, False)))
ONCE = [each for each in JOURNEYS if each is not find_yesterdays_dearest]
"""Those of the ordinary tests: the dearest run is found as the slowest one is."""
FIRST = [WAYS[(5 * number) % len(WAYS)] for number in range(len(ONCE))]


class Broken:
    """Fails as its server does."""

    async def complete(self, request, listener=None):
        raise ProviderOverloadedError(CAUSE)


def name_way(way):
    width, scheme, has_mouse = way
    return f"{width}-{scheme}-{'mouse' if has_mouse else 'keys'}"


@pytest.fixture(scope="module")
def world(tmp_path_factory, command_line):
    folder = tmp_path_factory.mktemp("journeys")
    training = write_training(folder / "learning" / "goes on")
    evaluation = [
        "eval", "--pool", "rehearsal", "--tasks", "rehearsal", "--limit", "8", "--systems",
        "harp,vote", "--out", str(folder / "out"), "--report", str(folder / "learning" / "measured"),
    ]  # fmt: skip
    done = command_line.run(*evaluation, cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr
    others = (
        (
            Worker(id=WorkerId("eye"), model="eye", description="Sees.", tags=("vision",)),
            ScriptedClient(lambda _: "A single dot."),
        ),
        (Worker(id=WorkerId("broken"), model="broken", description="Fails."), Broken()),
    )
    with (
        PageServer(folder, pace=0.0, others=others).open() as app_state,
        PageServer(tmp_path_factory.mktemp("keyed"), pace=0.0, keyed=True).open() as keyed,
        pytest.MonkeyPatch.context() as patch,
        opened_pool(patch, tmp_path_factory.mktemp("pool")) as pool,
    ):
        run = post_chat(app_state.url, QUESTION)
        post_chat(app_state.url, "Why does this fail?", model="worker/broken")
        for number in range(1, 4):
            post_chat(app_state.url, f"Agent's turn {number}", session="an agent's own name")
        app_state.call(fill_yesterday, app_state.store)
        keyed.call(fill_tenants, keyed.store)
        _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "acme", "tests")
        yield World(
            app_state=app_state,
            keyed=keyed,
            pool=pool,
            run=run,
            keys={"acme": issued.text},
            training=training,
        )


def opened_pool(patch, folder):
    patch.setenv(KEY_VARIABLE, KEY)
    return serve_edited_pool(folder)


def write_training(folder):
    folder.mkdir(parents=True)
    lines = [
        {"step": n, "reward": n / 60, "right": n / 50, "valid": 0.9, "steps": 2.0, "entropy": 1 / n}
        for n in range(1, 31)
    ]
    folder.joinpath("metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    folder.joinpath("settings.json").write_text(json.dumps({"optimiser": {"steps": 400}}))
    return folder


async def fill_yesterday(store):
    noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0)
    told = (
        ("Something of yesterday", 1, "0.001", 3.0),
        ("The slowest of yesterday", 1, "0.002", 90.0),
        ("The dearest of yesterday", 1, "1.25", 5.0),
        ("Slow and dear the day before", 2, "7.5", 500.0),
    )
    for number, (text, days, dollars, seconds) in enumerate(told):
        run = make_run(number, question=text)
        header = replace(run.header, started=(noon - timedelta(days=days)).timestamp())
        first = run.rounds[0]
        step = first.steps[0]
        paid = replace(step, result=replace(step.result, cost=Cost(Decimal(dollars))))
        rounds = (replace(first, steps=(paid, *first.steps[1:])), *run.rounds[1:])
        await store.append(replace(run, header=header, seconds=seconds, rounds=rounds))
    await store.flush()


async def fill_tenants(store):
    for number in range(8):
        tenant = "acme" if number % 2 else "other"
        run = make_run(number, question=f"Question {number} of {tenant}")
        header = replace(run.header, started=time.time() - 60 * number)
        await store.append(replace(run, header=header), tenant=tenant)
    await store.flush()


def travel(visit, world, journey, way):
    width, scheme, has_mouse = way
    address = "/ui/sign-in" if journey in WITH_KEYS else "/ui/"
    app_state = world.keyed if journey in WITH_KEYS else world.app_state
    if journey is add_and_test_a_worker:
        app_state = world.pool
    page = visit(app_state, address, width=width, scheme=scheme)
    folder = os.environ.get("BATUTA_SHOTS")
    shots = f"{folder}/{journey.__name__}-{name_way(way)}" if folder else ""
    journey(Visitor(page, has_mouse=has_mouse, shots=shots), world)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("journey", "way"),
    list(zip(ONCE, FIRST, strict=True)),
    ids=lambda one: one.__name__ if callable(one) else name_way(one),
)
def test_a_journey_ends_well(visit, world, journey, way):
    travel(visit, world, journey, way)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS, ids=name_way)
@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda one: one.__name__)
def test_a_journey_ends_well_in_every_way(visit, world, journey, way):
    travel(visit, world, journey, way)
