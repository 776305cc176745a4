"""Batuta's systems under inspect_ai, where it is installed."""

import json
import os
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from batuta.cli import app
from batuta.errors import ConfigError
from batuta.lab import worlds
from batuta.lab.tasks.recorded.importers import import_outcomes
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Fault, Said

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


def evaluated(folder, model, count=6, **options):
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import includes  # pyright: ignore[reportMissingImports]
    from inspect_ai.solver import generate  # pyright: ignore[reportMissingImports]

    import batuta.lab.evals.inspect  # noqa: F401 - it registers the provider

    tasks = worlds.draw_tasks("arithmetic", count, 3)
    samples = [Sample(input=task.question, target=task.target, id=str(task.id)) for task in tasks]
    task = inspect_ai.Task(dataset=samples, solver=generate(), scorer=includes())
    (log,) = inspect_ai.eval(
        task, model=model, model_args={"pool": "rehearsal"} | options, log_dir=str(folder),
        display="none", score_display=False,
    )  # fmt: skip
    return log


def test_a_system_answers_and_its_run_is_in_the_log(tmp_path):
    log = evaluated(tmp_path, "batuta/ultra", conductor="hand-written")
    assert log.status == "success", log.error
    outputs = [sample.output for sample in log.samples]
    assert {output.metadata["outcome"] for output in outputs} == {"answered"}
    for output in outputs:
        assert output.metadata["calls"] == len(output.metadata["steps"]) + 1
        assert output.usage.total_tokens > 0 and output.usage.total_cost > 0
    assert sum(sample.scores["includes"].value == "C" for sample in log.samples) >= 3


def test_a_worker_alone_is_a_system_too(tmp_path):
    log = evaluated(tmp_path, "batuta/oboe")
    assert [s.output.metadata["steps"] for s in log.samples] == [
        [{"worker": "oboe", "subtask": "", "reads": []}]
    ] * len(log.samples)


GUARDED = """
[[workers]]
id = "ada"
model = "model-ada"
base_url = "{url}"
key_env = "TEST_KEY"
[[policies]]
name = "no-keys"
kind = "secrets"
on = ["output"]
action = "redact"
"""


@pytest.mark.anyio
async def test_a_system_is_measured_with_its_guardrails(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    async with FakeOpenAI(lambda _: "The key is AKIAIOSFODNN7EXAMPLE.") as server:
        pool = tmp_path / "batuta.toml"
        pool.write_text(GUARDED.format(url=server.url))
        for model in ("batuta/ada", "batuta/ultra"):
            log = await anyio.to_thread.run_sync(
                lambda model=model: evaluated(tmp_path, model, 1, pool=str(pool))
            )
            assert log.status == "success", log.error
            (sample,) = log.samples
            assert "[removed by no-keys]" in sample.output.completion, model


@pytest.mark.anyio
async def test_a_method_that_lost_a_reply_to_an_outage_gives_no_answer_to_grade(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TEST_KEY", KEY)
    async with FakeOpenAI(lambda _: "Answer: 7") as server, FakeOpenAI(lambda _: "") as down:
        down.faults += [Fault.UNAUTHORISED] * 100
        pool = write_shop_pool(tmp_path, server.url)
        pool.write_text(pool.read_text()[::-1].replace(server.url[::-1], down.url[::-1], 1)[::-1])
        for model, status in (("careful", "success"), ("pipeline", "error"), ("ultra", "success")):
            log = await anyio.to_thread.run_sync(
                lambda model=model: evaluated(tmp_path, f"batuta/{model}", 1, pool=str(pool))
            )
            assert log.status == status, (model, log.error)


def test_a_question_with_a_picture_is_not_answered_without_it(tmp_path):
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import (  # pyright: ignore[reportMissingImports]
        ChatMessageUser,
        ContentImage,
        ContentText,
    )

    import batuta.lab.evals.inspect  # noqa: F401 - it registers the provider

    picture = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
    asked = ChatMessageUser(content=[ContentText(text="What is shown?"), picture])
    (log,) = inspect_ai.eval(
        inspect_ai.Task(dataset=[Sample(input=[asked], target="a cat")]),
        model="batuta/cello", model_args={"pool": "rehearsal"}, log_dir=str(tmp_path),
        display="none", score_display=False,
    )  # fmt: skip
    assert log.status == "error" and "a part of the kind 'image'" in log.error.message


def test_an_unknown_system_is_told(tmp_path):
    log = evaluated(tmp_path, "batuta/opera", 1)
    assert log.status == "error" and "there is no system 'opera'" in log.error.message


ORDERS = {"1": "open", "2": "shipped", "3": "open", "4": "shipped"}
POLICY = "You serve a shop. Look an order up first. One that is shipped is never cancelled."


def serve_customer(body):
    """`careful` looks an order up before it cancels it; `rash` cancels whatever it is asked to."""
    said, tools = body["messages"], {tool["function"]["name"] for tool in body["tools"]}
    assert tools == {"find_order", "cancel_order"}
    number = next(m["content"] for m in said if m["role"] == "user").split("order ")[1][0]
    results = [m["content"] for m in said if m["role"] == "tool"]
    place = len(results)
    if said[-1]["role"] == "user" and place:
        return "You are welcome."
    if body["model"] == "model-rash":
        cancels = Said(calls=(("c1", "cancel_order", {"number": number}),))
        return "It is cancelled." if results else cancels
    if not results:
        return Said(calls=(("c1", "find_order", {"number": number}),))
    if place == 1 and results[0] == "open":
        return Said(calls=(("c2", "cancel_order", {"number": number}),))
    return "It is cancelled." if place > 1 else "It is on its way, so it cannot be cancelled."


def shop_task():
    """A conversation of two turns over a shop's orders, judged by how they are in the end."""
    from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import ChatMessageUser  # pyright: ignore[reportMissingImports]
    from inspect_ai.scorer import Score, accuracy, scorer  # pyright: ignore[reportMissingImports]
    from inspect_ai.solver import (  # pyright: ignore[reportMissingImports]
        generate,
        solver,
        system_message,
        use_tools,
    )
    from inspect_ai.tool import tool  # pyright: ignore[reportMissingImports]
    from inspect_ai.util import store  # pyright: ignore[reportMissingImports]

    @tool
    def find_order():
        async def execute(number: str) -> str:
            """How an order is.

            Args:
                number: its number.
            """
            return store().get("orders", ORDERS)[number]

        return execute

    @tool
    def cancel_order():
        async def execute(number: str) -> str:
            """Cancel an order.

            Args:
                number: its number.
            """
            store().set("orders", {**store().get("orders", ORDERS), number: "cancelled"})
            return "cancelled"

        return execute

    @solver
    def customer_thanks():
        async def solve(state, generate):
            state.messages.append(ChatMessageUser(content="Thank you."))
            return await generate(state)

        return solve

    @scorer(metrics=[accuracy()])
    def orders_are_right():
        async def score(state, target):
            number = state.sample_id
            wanted = {**ORDERS, str(number): target.text}
            return Score(value="C" if state.store.get("orders", ORDERS) == wanted else "I")

        return score

    samples = [
        Sample(
            id=number,
            input=f"Please cancel my order {number}.",
            target="cancelled" if kept == "open" else kept,
        )
        for number, kept in ORDERS.items()
    ]
    steps = [
        system_message(POLICY),
        use_tools(find_order(), cancel_order()),
        generate(),
        customer_thanks(),
    ]
    return inspect_ai.Task(name="shop", dataset=samples, solver=steps, scorer=orders_are_right())


def write_shop_pool(folder, url):
    pool = folder / "batuta.toml"
    pool.write_text(
        "".join(
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1, output = 2 }}\n'
            for name in ("careful", "rash")
        )
    )
    return pool


@pytest.mark.anyio
@pytest.mark.timeout(180)
async def test_workers_serve_a_customer_with_tools_and_their_logs_are_compared(
    tmp_path, monkeypatch, command_line
):
    import batuta.lab.evals.inspect  # noqa: F401 - it registers the provider

    monkeypatch.setenv("TEST_KEY", KEY)
    async with FakeOpenAI(serve_customer, strict_openai=False) as server:
        pool = write_shop_pool(tmp_path, server.url)

        def evaluate(name):
            (log,) = inspect_ai.eval(
                shop_task(), model=f"batuta/{name}", model_args={"pool": str(pool)},
                log_dir=str(tmp_path), log_format="json", display="none",
            )  # fmt: skip
            return log

        logs = [await anyio.to_thread.run_sync(evaluate, name) for name in ("careful", "rash")]
        assert not server.wrong
    for log, right in zip(logs, ("CCCC", "CICI"), strict=True):
        assert log.status == "success", log.error
        assert "".join(s.scores["orders_are_right"].value for s in log.samples) == right
        assert log.samples[0].messages[-1].text == "You are welcome."
    rows = import_outcomes("inspect", [Path(log.location) for log in logs]).rows()
    first = {row["id"]: row for row in rows}["shop/1"]["workers"]
    assert {name: run["scores"] for name, run in first.items()} == {
        "batuta/careful": [1.0],
        "batuta/rash": [1.0],
    }
    assert first["batuta/careful"]["usd"][0] > first["batuta/rash"]["usd"][0] > 0
    outcomes = tmp_path / "outcomes.jsonl"
    outcomes.write_text("\n".join(map(json.dumps, rows)))
    command = ["eval", "--tasks", f"recorded:{outcomes}", "--json"]
    command += ["--systems", "batuta/careful,batuta/rash", "--out", str(tmp_path / "out")]
    here = {"cwd": tmp_path, "env": {**os.environ, "BATUTA_HOME": str(tmp_path)}}
    done = await anyio.to_thread.run_sync(lambda: command_line.run(*command, **here))
    found = json.loads(done.stdout)["systems"]
    assert found["batuta/careful"]["accuracy"] == 1.0


TASK_FILE = """
from lab.evals.test_inspect import shop_task
from inspect_ai import task


@task
def shop():
    return shop_task()
"""


@pytest.mark.anyio
@pytest.mark.timeout(240)
async def test_a_task_with_tools_is_evaluated_in_one_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "home"))
    (tmp_path / "shop.py").write_text(TASK_FILE)
    async with FakeOpenAI(serve_customer, strict_openai=False) as server:
        write_shop_pool(tmp_path, server.url)

        def evaluate():
            done = CliRunner().invoke(
                app,
                ["eval", "--tasks", f"inspect:{tmp_path / 'shop.py'}@shop", "--systems",
                 "careful,rash", "--pool", str(tmp_path / "batuta.toml"), "--json",
                 "--out", str(tmp_path / "out")],
            )  # fmt: skip
            assert done.exit_code == 0, f"{done.output} {done.exception!r}"
            return json.loads(done.stdout)

        first = await anyio.to_thread.run_sync(evaluate)
        assert not server.wrong
        paid = len(server.requests)
        again = await anyio.to_thread.run_sync(evaluate)
        assert len(server.requests) == paid, "what was run is not run again"
        damaged, _ = sorted((tmp_path / "out" / "inspect").rglob("*.eval"))
        damaged.write_bytes(damaged.read_bytes()[:500])
        mended = await anyio.to_thread.run_sync(evaluate)
        assert len(server.requests) > paid, "a log that was cut is made again"
        assert mended["systems"]["rash"]["accuracy"] == first["systems"]["rash"]["accuracy"]
    systems = first["systems"]
    assert (systems["careful"]["accuracy"], systems["rash"]["accuracy"]) == (1.0, 0.5)
    assert systems["careful"]["n"] == 4 and systems["careful"]["usd"] > systems["rash"]["usd"] > 0
    assert again["systems"] == systems


@pytest.mark.timeout(120)
def test_a_task_of_inspect_that_cannot_be_run_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "home"))
    (tmp_path / "shop.py").write_text(TASK_FILE)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "failing.py").write_text(
        "from inspect_ai import task\n\n\n@task\ndef failing():\n    raise KeyboardError\n"
    )
    for task, system, said in (
        (f"{tmp_path}/none.py", "cello", "there is no file"),
        (f"{tmp_path}/empty.py", "cello", "No inspect tasks were found"),
        (f"{tmp_path}/shop.py@store", "cello", "Task named 'store' not found"),
        (f"{tmp_path}/failing.py", "cello", "name 'KeyboardError' is not defined"),
        ("nothing/here", "cello", "No inspect tasks were found"),
        (f"{tmp_path}/shop.py", "opera", "there is no system 'opera'"),
        (f"{tmp_path}/shop.py", "vote", "calls no tools"),
    ):
        done = CliRunner().invoke(
            app,
            ["eval", "--tasks", f"inspect:{task}", "--systems", system, "--pool", "rehearsal",
             "--out", str(tmp_path / "out")],
        )  # fmt: skip
        assert isinstance(done.exception, ConfigError), done.output
        assert said in str(done.exception), task


def test_a_method_that_chooses_among_answers_calls_no_tools(tmp_path):
    import batuta.lab.evals.inspect  # noqa: F401 - it registers the provider

    (log,) = inspect_ai.eval(
        shop_task(), model="batuta/vote", model_args={"pool": "rehearsal"},
        log_dir=str(tmp_path), display="none",
    )  # fmt: skip
    assert log.status == "error" and "calls no tools" in log.error.message
