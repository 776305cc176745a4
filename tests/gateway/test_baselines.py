"""The published methods behind the API: listed, answered, counted and stored like any model."""

from dataclasses import replace

import anyio
import numpy as np
import openai
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Limits, Outcome
from batuta.errors import ConfigError
from batuta.gateway import served_models
from batuta.gateway.serving.baselines import (
    BASELINE_PREFIX,
    baseline_models,
    unavailable_baselines,
)
from batuta.lab.baselines import fit_cascade
from batuta.lab.baselines.registry import BASELINES
from batuta.lab.baselines.served import ServedBaselines
from batuta.lab.evals import Subject, find_system
from batuta.lab.learners.history import read_history
from gateway.live_server import HI, PRICE, Halting, Serving, pool_of, server_state, stored

pytestmark = pytest.mark.anyio

LIMITS = Limits(seconds=60)
CALLS = {
    "best-single": 1,
    "self-consistency@5": 5,
    "best-of-5": 6,
    "self-reflection": 2,
    "moa": 13,
    "moa-8": 8,
    "pipeline": 5,
    "random-routing": 1,
}
"""Calls that each makes where every worker says that all is right."""
UNTAUGHT = {each.default_name: each.build(each.number) for each in BASELINES if each.build}
"""The methods that need no outcomes."""


def speaker(name):
    return ScriptedClient(lambda _: f"The solution is right, says {name}.\nAnswer: 42", price=PRICE)


def app_state(*, history=None, clients=None, cascade=None, checker=None, **options):
    clients = clients or {name: speaker(name) for name in ("ada", "bob", "eve")}
    pool = pool_of(*clients)
    learned = ServedBaselines(pool=pool, history=history, cascade=cascade, checker=checker)
    served = (
        *served_models(pool),
        *baseline_models(pool, LIMITS, learned),
    )
    return server_state(
        pool, clients, served, unavailable_models=unavailable_baselines(learned), **options
    )


SUM, CITY = "Add {} and {}, then double it.", "Which city is the capital of land {}, {}?"


@pytest.fixture
def outcomes(tmp_path):
    """A file of one's own: Ada solves the sums, Bob knows the cities; and what is read of it."""

    def read(count=160, score=None, answered=False):
        lines = [
            {
                "question": (CITY if at % 2 else SUM).format(at, 7 * at % 50),
                "workers": {
                    name: {"scores": [float(good)], "answers": ["4" if good else "5"]}
                    if answered
                    else {"score": score if score is not None else float(good)}
                    for name, good in {"ada": at % 2 == 0, "bob": at % 2, "eve": 0}.items()
                },
            }
            for at in range(count)
        ]
        path = tmp_path / "outcomes.jsonl"
        path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
        return read_history(path)

    return read


async def test_they_are_listed_beside_the_other_models():
    async with Serving(app_state()) as server:
        names = [model.id async for model in server.openai.models.list()]
    assert names[:2] == ["batuta-mini", "worker/ada"]
    assert {name for name in names if name.startswith(BASELINE_PREFIX)} == {
        BASELINE_PREFIX + n for n in UNTAUGHT
    }


@pytest.mark.parametrize("name", UNTAUGHT)
def test_a_name_means_the_same_method_as_in_an_evaluation(name):
    if name != "random-routing":  # there it is fitted, to the workers of a history
        pool = pool_of("ada", "bob")
        assert (
            UNTAUGHT[name].name
            == find_system(name, Subject(pool=pool, clients={}, conductor=None)).solver.name
        )


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_its_usage_and_its_run(store, name):
    async with Serving(app_state(store=store)) as server:
        raw = await server.openai.chat.completions.with_raw_response.create(
            model=BASELINE_PREFIX + name,
            messages=HI,  # pyright: ignore[reportArgumentType]
        )
        (row,) = await stored(store)
        _, run = await server.get(f"/v1/runs/{raw.headers['x-batuta-run-id']}")
    reply = raw.parse()
    assert reply.model == BASELINE_PREFIX + name
    assert reply.choices[0].message.content.endswith("Answer: 42")
    assert (row.model, row.outcome) == (BASELINE_PREFIX + name, Outcome.ANSWERED)
    assert row.id == raw.headers["x-batuta-run-id"] == run["id"]
    steps = [step for round_ in run["trace"]["rounds"] for step in round_["steps"]]
    assert len(steps) == CALLS[name]
    assert reply.usage.total_tokens > 0
    assert float(raw.headers["x-batuta-cost-usd"]) == float(run["cost_usd"]) > 0


@pytest.mark.parametrize("name", ["self-consistency@5", "moa-8"])
async def test_streamed_the_answer_is_the_same(name):
    async with Serving(app_state()) as server:
        stream = await server.openai.chat.completions.create(  # pyright: ignore[reportCallIssue]
            model=BASELINE_PREFIX + name,
            messages=HI,  # pyright: ignore[reportArgumentType]
            stream=True,
            stream_options={"include_usage": True},
        )
        said, usage = "", None
        async for chunk in stream:
            for choice in chunk.choices:
                said += choice.delta.content or ""
            usage = chunk.usage or usage
    assert said.endswith("Answer: 42") and usage.total_tokens > 0


async def test_the_majority_is_returned_not_the_last_reply():
    lines = ["Answer: 1", "Answer: 2", "Answer: 2", "Answer: 2", "Answer: 3"]
    clients = {"ada": ScriptedClient(lines), "bob": ScriptedClient([])}
    async with Serving(app_state(clients=clients)) as server:
        reply = await server.openai.chat.completions.create(
            model="baseline/self-consistency@5",
            messages=HI,  # pyright: ignore[reportArgumentType]
        )
    assert reply.choices[0].message.content == "Answer: 2"


@pytest.mark.parametrize("name", ["self-consistency@5", "moa-8"])
async def test_a_method_is_not_run_with_fewer_calls_than_it_makes(name):
    async with Serving(app_state()) as server:
        with pytest.raises(openai.BadRequestError) as caught:
            await server.openai.chat.completions.create(
                model=BASELINE_PREFIX + name,
                messages=HI,  # pyright: ignore[reportArgumentType]
                extra_body={"orchestration": {"max_steps": 2}},
            )
    assert caught.value.param == "orchestration.max_steps"
    assert f"as many calls as {BASELINE_PREFIX}{name} makes" in caught.value.message


async def test_the_callers_limits_and_choice_of_workers_bind():
    async with Serving(app_state()) as server:
        one = {"workers_allow": ["eve"], "trace": True}
        reply = await server.openai.chat.completions.create(
            model="baseline/best-single",
            messages=HI,  # pyright: ignore[reportArgumentType]
            extra_body={"orchestration": one},
        )
        assert "says eve" in reply.choices[0].message.content
        with pytest.raises(openai.RateLimitError) as caught:
            await server.openai.chat.completions.create(
                model="baseline/self-consistency@5",
                messages=HI,  # pyright: ignore[reportArgumentType]
                extra_body={"orchestration": {"max_cost_usd": 0}},
            )
    assert caught.value.code == "budget_exceeded"


async def test_a_workflow_by_hand_takes_the_methods_place():
    by_hand = {"workflow": {"steps": [{"subtask": "Say it.", "worker": "bob"}]}}
    async with Serving(app_state()) as server:
        reply = await server.openai.chat.completions.create(
            model="baseline/self-consistency@5",
            messages=HI,  # pyright: ignore[reportArgumentType]
            extra_body={"orchestration": by_hand},
        )
    assert "says bob" in reply.choices[0].message.content


async def test_a_method_that_is_loaded_during_a_reload_answers():
    name = "baseline/self-consistency@5"
    state, fresh = app_state(), app_state().catalogue
    served = state.catalogue.find_model(name)
    assert served is not None

    def load():
        state.catalogue.replace_by(fresh)
        return served.load()

    models = (replace(served, load=load),)
    state.catalogue.replace_by(replace(state.catalogue, models=models))
    await state.catalogue.load_model(name)
    loaded = state.catalogue.find_model(name)
    assert loaded is not None and loaded.solver is not None and loaded.load is None


async def test_a_reader_that_goes_away_ends_every_call():
    ada = Halting()
    async with Serving(app_state(clients={"ada": ada})) as server:
        with anyio.move_on_after(20):
            async with anyio.create_task_group() as tasks:
                ask = {"model": "baseline/self-consistency@5", "messages": HI}
                tasks.start_soon(lambda: server.post(json=ask))
                await ada.started.wait()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await ada.cancelled.wait()


class TestLearned:
    async def test_without_a_history_the_error_says_what_to_do(self):
        async with Serving(app_state()) as server:
            with pytest.raises(openai.NotFoundError) as caught:
                await server.openai.chat.completions.create(model="baseline/knn", messages=HI)  # pyright: ignore[reportArgumentType]
            with pytest.raises(openai.NotFoundError) as sought:
                await server.openai.models.retrieve("baseline/knn")
        assert "start the server with --history FILE" in caught.value.message
        assert caught.value.message == sought.value.message
        assert caught.value.code == "model_not_found"

    async def test_with_one_every_method_is_listed(self, outcomes):
        async with Serving(app_state(history=outcomes())) as server:
            names = {model.id async for model in server.openai.models.list()}
        assert {BASELINE_PREFIX + each.default_name for each in BASELINES} <= names

    @pytest.mark.parametrize(
        ("question", "chosen"),
        [
            (SUM.format(12, 30), "ada"),
            (CITY.format(99, 3), "bob"),
        ],
    )
    async def test_a_router_asks_the_worker_that_was_good_at_such_questions(
        self, store, outcomes, question, chosen
    ):
        async with Serving(app_state(history=outcomes(), store=store)) as server:
            reply = await server.openai.chat.completions.create(
                model="baseline/knn", messages=[{"role": "user", "content": question}]
            )
            (row,) = await stored(store)
        assert f"says {chosen}" in reply.choices[0].message.content
        assert (row.model, row.conductor) == ("baseline/knn", "knn")

    async def test_a_chooser_asks_everybody_and_returns_one_answer(self, outcomes):
        clients = {
            "ada": ScriptedClient(["Answer: 7"]),
            "bob": ScriptedClient(["Answer: 8"]),
            "eve": ScriptedClient(["I say 8.\nAnswer: 8"]),
        }
        async with Serving(app_state(history=outcomes(), clients=clients)) as server:
            reply = await server.openai.chat.completions.create(
                model="baseline/smoothie",
                messages=HI,  # pyright: ignore[reportArgumentType]
            )
        assert reply.choices[0].message.content == "Answer: 8"
        assert all(len(client.requests) == 1 for client in clients.values())

    async def test_the_cascade_asks_on_until_it_is_sure_and_needs_the_answers(self, outcomes):
        history = outcomes(count=240, answered=True)
        clients = {
            name: ScriptedClient([f"Answer: {n}"] * 3)
            for n, name in enumerate(("ada", "bob", "eve"))
        }
        question = [{"role": "user", "content": SUM.format(12, 30)}]
        async with Serving(app_state(history=history, clients=clients)) as server:
            reply = await server.openai.chat.completions.create(
                model="baseline/cascade",
                messages=question,  # pyright: ignore[reportArgumentType]
            )
        assert reply.choices[0].message.content == "Answer: 0"
        assert 1 <= sum(len(client.requests) for client in clients.values()) <= 3
        assert len(clients["ada"].requests) == 1
        async with Serving(app_state(history=outcomes())) as server:
            with pytest.raises(openai.NotFoundError, match="with their answers"):
                await server.openai.chat.completions.create(
                    model="baseline/cascade",
                    messages=question,  # pyright: ignore[reportArgumentType]
                )

    async def test_a_trained_cascade_is_served_without_a_history_and_with_a_checker(
        self, outcomes, store
    ):
        cascade = fit_cascade(outcomes(count=240, answered=True))
        belief = cascade.strange  # one that always goes on
        always = np.zeros_like(belief.onward_kg)
        always[:, 0] = 1
        onward = replace(belief, onward_kg=always)
        eager = replace(cascade, familiar=onward, strange=onward)
        clients = {
            "ada": ScriptedClient(["Answer: 7"] * 3, price=PRICE),
            "bob": ScriptedClient(["Answer: 8"] * 3, price=PRICE),
            "eve": ScriptedClient(["The solution is right."] * 3, price=PRICE),
        }
        question = [{"role": "user", "content": SUM.format(12, 30)}]
        served = app_state(clients=clients, cascade=eager, checker="eve", store=store)
        async with Serving(served) as server:
            reply = await server.openai.chat.completions.create(
                model="baseline/cascade",
                messages=question,  # pyright: ignore[reportArgumentType]
            )
            with pytest.raises(openai.NotFoundError, match="--history FILE"):
                await server.openai.chat.completions.create(model="baseline/knn", messages=question)  # pyright: ignore[reportArgumentType]
        assert reply.choices[0].message.content == "Answer: 7"
        assert "Answer: 7" in clients["eve"].requests[0].messages[-1].text
        (row,) = await stored(store)
        asked = sum(len(client.requests) for client in clients.values())
        assert (row.model, row.calls) == ("baseline/cascade", asked)

    def test_a_cascade_of_strangers_and_an_unknown_checker_are_refused(self, outcomes):
        cascade = fit_cascade(outcomes(count=240, answered=True))
        with pytest.raises(
            ConfigError, match="was fitted to no worker of this pool, only to ada, bob, eve"
        ):
            ServedBaselines(pool=pool_of("max", "moritz"), cascade=cascade)
        with pytest.raises(ConfigError, match="no worker 'max' to check"):
            ServedBaselines(pool=pool_of("ada", "bob"), cascade=cascade, checker="max")

    @pytest.mark.parametrize(("name", "score"), [("routellm-mf", 1.0), ("knn", None)])
    async def test_a_history_that_teaches_nothing_leaves_the_best_worker(
        self, store, outcomes, name, score
    ):
        history = outcomes(score=score)
        if score is None:
            history.scores_qm[:] = float("nan")
        async with Serving(app_state(history=history, store=store)) as server:
            reply = await server.openai.chat.completions.create(
                model=BASELINE_PREFIX + name,
                messages=HI,  # pyright: ignore[reportArgumentType]
            )
            (row,) = await stored(store)
        assert "says ada" in reply.choices[0].message.content
        assert row.outcome is Outcome.FALLBACK

    def test_a_history_of_other_workers_is_refused(self, outcomes):
        with pytest.raises(ConfigError, match="has 0 workers of this pool"):
            ServedBaselines(pool=pool_of("dan", "fay", "gil"), history=outcomes())


def test_a_served_name_has_a_conductor_or_a_solver():
    (first, *_) = baseline_models(pool_of("ada"), LIMITS)
    with pytest.raises(ValueError, match="either a conductor or a solver"):
        replace(first, conductor=None, solver=None, load=None)
