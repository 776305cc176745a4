"""The library's front door, as a script, a service and a notebook use it."""

import asyncio
import json
import subprocess
import sys
from decimal import Decimal

import anyio
import pytest

import batuta
from batuta.clients import ScriptedClient
from batuta.core import (
    Image,
    Outcome,
    Reply,
    ResponseFormat,
    Text,
    Tool,
    ToolCall,
    Usage,
    WorkerId,
    assistant_message,
    user_message,
)
from batuta.core.run import RoundPlanned, RunFinished, RunHeader
from batuta.core.worker import Finish
from batuta.session.questions import load_image, parse_question
from batuta.store import Store
from fakes.environ import clean_environ

EASY = "Compute the result: begin at 45; square it; double it."
ONE = WorkerId("one")


def one_worker(reply):
    """A pool of one scripted worker, and its clients."""
    pool = batuta.Pool((batuta.Worker(id=ONE, model="model-a"),))
    return pool, {ONE: ScriptedClient(reply)}


def test_everything_promised_is_there_and_costs_nothing_before_it_is_used():
    assert set(batuta.__all__) <= set(dir(batuta))
    assert all(getattr(batuta, name) is not None for name in batuta.__all__)
    code = "import batuta, sys; print(len([m for m in sys.modules if m.startswith('batuta.')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    with pytest.raises(AttributeError, match="told"):
        _ = batuta.told


async def test_a_question_over_the_rehearsal():
    async with batuta.open("rehearsal") as session:
        run = await session.ask(EASY, max_cost=0.05)
        assert session.simulated and len(session.pool) == 7
        assert session.spent == run.cost
    assert "Answer:" in run.answer and run.cost.usd > 0
    assert "\n" not in repr(run) and str(run.id) in repr(run) and "$0.0" in repr(run)
    html = run._repr_html_()
    assert "<svg" in html and "Answer:" in html and run.steps[0].worker in html


async def test_html_of_a_run_escapes_what_models_said():
    pool, clients = one_worker(lambda _: "<script>alert(1)</script>")
    async with batuta.open(pool, clients=clients) as session:
        run = await session.ask("say something")
    assert "<script>" not in run._repr_html_() and "&lt;script&gt;" in run._repr_html_()


def test_ask_sync_in_a_script():
    assert "Answer:" in batuta.ask_sync(EASY, "rehearsal").answer


async def test_ask_sync_in_a_notebook_whose_loop_is_running():
    assert asyncio.get_running_loop().is_running()
    assert "Answer:" in batuta.ask_sync(EASY, "rehearsal", max_steps=3).answer


async def test_limits_of_a_question_narrow_the_run():
    async with batuta.open("rehearsal") as session:
        run = await session.ask(EASY, max_tokens=1)
    assert run.outcome is Outcome.LIMITED and run.header.limits.tokens == 1


async def test_a_dry_run_calls_nobody():
    async with batuta.open("rehearsal") as session:
        run = await session.ask(EASY, dry_run=True)
    assert run.outcome is Outcome.PLANNED and run.expected is not None and not run.steps


async def test_a_stream_tells_every_event_and_has_the_run_at_the_end():
    async with batuta.open("rehearsal") as session:
        stream = session.stream(EASY)
        events = [event async for event in stream]
        kinds = [type(event) for event in events]
        assert kinds[0] is RunHeader and RoundPlanned in kinds and kinds[-1] is RunFinished
        assert stream.run is not None and "Answer:" in stream.run.answer


async def test_leaving_a_stream_early_cancels_the_run():
    started, cancelled = anyio.Event(), anyio.Event()

    class Slow:
        async def complete(self, request, listener=None):
            started.set()
            try:
                await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                cancelled.set()
                raise

    pool = batuta.Pool((batuta.Worker(id=ONE, model="model-a"),))
    async with batuta.open(pool, clients={ONE: Slow()}) as session:  # pyright: ignore[reportArgumentType]
        stream = session.stream("anything")
        events = aiter(stream)
        assert isinstance(await anext(events), RunHeader)
        while not isinstance(await anext(events), RoundPlanned):
            pass
        with anyio.fail_after(60):
            await started.wait()
            await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]
            await cancelled.wait()


async def test_a_stream_raises_what_the_question_got_wrong_and_the_session_lives_on():
    async with batuta.open("rehearsal") as session:
        with pytest.raises(ValueError, match="empty"):
            async for _ in session.stream("  "):
                pass
        assert "Answer:" in (await session.ask(EASY)).answer


async def test_a_batch_keeps_its_order_and_tells_how_far_it_is():
    told = []
    pool, clients = one_worker(lambda request: request.messages[-1].text[::-1])
    async with batuta.open(pool, clients=clients) as session:
        runs = await session.ask_many(
            [f"question {n}" for n in range(20)],
            concurrency=4,
            progress=lambda done, total: told.append((done, total)),
        )
    assert [run.answer for run in runs] == [f"question {n}"[::-1] for n in range(20)]
    assert told[-1] == (20, 20) and sorted(told) == told


async def test_tools_are_run_for_the_workers_until_there_is_an_answer():
    def reply(request):
        results = [m.parts[0].content for m in request.messages if m.role == "tool"]
        if not results:
            call = ToolCall(id="c1", name="weather", arguments=json.dumps({"city": "Oslo"}))
            return Reply(
                text="",
                tool_calls=(call,),
                finish=Finish.TOOL_CALLS,
                usage=Usage(calls=1, input=5, output=1),
            )
        return f"It is {results[0]}."

    async def run_tool(call):
        assert call.name == "weather" and json.loads(call.arguments) == {"city": "Oslo"}
        return "-3 C"

    pool, clients = one_worker(reply)
    tools = [Tool(name="weather", description="The weather.", parameters={"type": "object"})]
    async with batuta.open(pool, clients=clients) as session:
        run = await session.ask("How cold is it in Oslo?", tools=tools, run_tool=run_tool)
        waiting = await session.ask("How cold is it in Oslo?", tools=tools)
    assert run.answer == "It is -3 C."
    assert waiting.outcome is Outcome.WAITING and waiting.reply.tool_calls[0].name == "weather"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_that_returns_no_text_is_an_error_of_the_program(is_async):
    async def run_later(_):
        return {"celsius": -3}

    pool, clients = one_worker(lambda _: Reply(text="", tool_calls=(ToolCall(id="1", name="weather", arguments="{}"),), finish=Finish.TOOL_CALLS, usage=Usage(calls=1, input=5, output=1)))  # fmt: skip
    tools = [Tool(name="weather", description="The weather.", parameters={"type": "object"})]
    run_tool = run_later if is_async else lambda _: {"celsius": -3}
    async with batuta.open(pool, clients=clients) as session:
        with pytest.raises(TypeError, match=r"must return a string, not \{'celsius': -3\}"):
            await session.ask("How cold is it in Oslo?", tools=tools, run_tool=run_tool)  # pyright: ignore[reportArgumentType]


def test_a_session_is_made_outside_of_an_event_loop():
    pool, clients = one_worker(lambda _: "42")
    session = batuta.open(pool, clients=clients)

    async def ask():
        async with session:
            return await session.ask("6 x 7?")

    assert anyio.run(ask).answer == "42"


async def test_a_stream_is_read_once_and_its_options_are_checked():
    pool, clients = one_worker(lambda _: "42")
    async with batuta.open(pool, clients=clients) as session:
        stream = session.stream("6 x 7?")
        assert [event async for event in stream] and stream.run.answer == "42"
        with pytest.raises(RuntimeError, match="only once"):
            _ = [event async for event in stream]
        with pytest.raises(TypeError, match="on_event must be an async function"):
            _ = [event async for event in session.stream("6 x 7?", on_event=5)]  # pyright: ignore[reportArgumentType]


async def test_a_workflow_by_hand_and_a_conductor_of_ones_own():
    flow = batuta.Workflow(
        (
            batuta.Step(subtask="Solve it.", worker=ONE),
            batuta.Step(subtask="Check it.", worker=ONE, access=(0,)),
        )
    )
    pool, clients = one_worker(lambda _: "42")
    async with batuta.open(pool, clients=clients) as session:
        run = await session.ask("6 x 7?", workflow=flow)
    assert len(run.steps) == 2 and run.header.conductor == "by-hand"


async def test_runs_are_kept_where_the_command_line_finds_them(tmp_path):
    home = {"BATUTA_HOME": str(tmp_path)}
    async with batuta.open("rehearsal", store=True, environ=home) as session:
        run = await session.ask(EASY)
    async with Store.open(str(tmp_path / "runs.db")) as store:
        assert (await store.get(run.id)).answer == run.answer


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("", "empty"),
        ([], "at least one"),
        ([{"role": "robot", "content": "x"}], "role"),
        ([{"role": ["user"], "content": "x"}], "role"),
        ([{"role": "user", "content": 7}], "content"),
        ([{"role": "user", "content": [{"type": "video"}]}], "part"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_sentence(given, fault):
    with pytest.raises(ValueError, match=fault):
        parse_question(given)


def test_conversations_and_pictures(tmp_path):
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n")
    address = "https://example.org/a.png"
    parts = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": address}},
    ]
    question = parse_question(
        [
            {"role": "system", "content": "Be brief."},
            assistant_message("Yes?"),
            {"role": "user", "content": parts},
        ],
        [picture, b"\xff\xd8jpeg", "data:image/gif;base64,R0lG"],
    )
    assert [str(m.role) for m in question.messages] == ["system", "assistant", "user"]
    text, *images = question.messages[-1].parts
    assert text == Text("What?") and images[0] == Image(url=address)
    assert [image.url.partition(";")[0] for image in images[1:]] == [  # pyright: ignore[reportAttributeAccessIssue]
        "data:image/png",
        "data:image/jpeg",
        "data:image/gif",
    ]
    assert parse_question(user_message("hello")).text == "hello"
    with pytest.raises(OSError, match="none"):
        load_image(tmp_path / "none.png")


async def test_a_session_says_what_is_missing():
    with pytest.raises(ValueError, match="together with its clients"):
        batuta.open(batuta.Pool((batuta.Worker(id=ONE, model="m"),)))
    with pytest.raises(RuntimeError, match="not open"):
        await batuta.open("rehearsal").ask("x")
    with pytest.raises(Exception, match="nowhere"):
        async with batuta.open("nowhere.toml"):
            pass


def test_costs_are_told_the_same_everywhere():
    from batuta.core import Cost
    from batuta.core.formatting import format_cost, format_count, format_percent, format_seconds

    assert format_cost(Cost(Decimal("0.00136"))) == "$0.0014"
    assert format_cost(Cost(Decimal("1.4"), 1)) == "≥ $1.40" and format_cost(Cost()) == "$0"
    assert format_cost(Cost(unpriced_calls=2)) == "unpriced"
    assert format_count(12345.0) == "12,345" and format_percent(0.417) == "42\u00a0%"
    assert [format_seconds(s) for s in (0.09, 1.44, 125)] == ["90 ms", "1.4 s", "2 min 05 s"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_steps": 12}, "max_steps must be at most 5"),
        ({"max_rounds": 99}, "max_rounds must be at most 3"),
    ],
)
def test_limits_beyond_what_there_can_be_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        batuta.ask_sync(EASY, "rehearsal", **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_costs": 0.05}, "no option 'max_costs'; did you mean max_cost"),
        ({"max_cost": "0.05"}, "max_cost must be a number of dollars, not '0.05'"),
        ({"max_steps": 2.5}, "max_steps must be a whole number, not 2.5"),
        ({"max_tokens": True}, "max_tokens must be a whole number, not True"),
        ({"tags": "law"}, "tags must be a list of strings, not 'law'"),
        ({"tags": [5]}, "tags must be a list of strings, not with 5"),
        ({"tools": [{"name": "a"}]}, "tools must be a list of `Tool`s, not with {'name': 'a'}"),
        ({"images": "a.png"}, "images must be a list of images"),
        ({"workflow": "x"}, "workflow must be a `Workflow`"),
        ({"sampling": {"temperature": 1}}, "sampling must be a `Sampling`"),
        ({"dry_run": "no"}, "dry_run must be True or False, not 'no'"),
        ({"on_event": 5}, "on_event must be an async function"),
        ({"seed": "x"}, "seed must be a whole number"),
    ],
)
def test_an_option_that_is_none_or_of_another_type_is_refused_before_anybody_is_asked(
    options, sentence
):
    with pytest.raises(TypeError, match=sentence):
        batuta.ask_sync(EASY, "rehearsal", **options)


def test_every_option_has_its_type():
    from batuta.session.options import _TYPES, AskOptions

    assert set(_TYPES) == set(AskOptions.__annotations__)


@pytest.mark.parametrize("given", [5, b"x", {"role": "user", "content": "x"}, ["x"], [5]])
def test_what_is_no_question_is_one_sentence(given):
    with pytest.raises(TypeError, match=r"^a (question|message) must be"):
        parse_question(given)


@pytest.mark.parametrize("name", ["usd", "seconds"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_limit_that_is_no_number_is_refused(name, value):
    with pytest.raises(ValueError, match="None is no limit"):
        batuta.Limits(**{name: value})


def test_a_limit_of_very_many_dollars_is_one():
    assert batuta.ask_sync(EASY, "rehearsal", max_cost=1e300).answer


async def test_a_session_is_opened_once_and_closed_for_good():
    session = batuta.open("rehearsal")
    async with session:
        with pytest.raises(RuntimeError, match="opened only once"):
            await session.__aenter__()
        for concurrency in (0, -1):
            with pytest.raises(ValueError, match="at least 1"):
                await session.ask_many([EASY], concurrency=concurrency)
        with pytest.raises(TypeError, match="list of questions"):
            await session.ask_many(EASY)
    await session.__aexit__(None, None, None)
    with pytest.raises(RuntimeError, match="the session is closed"):
        await session.ask(EASY)
    with pytest.raises(RuntimeError, match="the session is closed"):
        session.stream(EASY)
    with pytest.raises(RuntimeError, match="the session is closed"):
        _ = session.pool
    with pytest.raises(RuntimeError, match="opened only once"):
        await session.__aenter__()


def test_a_pool_that_cannot_be_opened_leaves_no_connection_open(tmp_path):
    code = "import asyncio, batuta\nasync def main():\n async with batuta.open('discover'): pass\nasyncio.run(main())"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True)  # fmt: skip
    assert "no model was found" in done.stderr and "Unclosed" not in done.stderr


async def test_an_option_that_is_none_is_as_if_omitted():
    from batuta.session.options import _TYPES

    none = dict.fromkeys(_TYPES)
    async with batuta.open("rehearsal") as session:
        assert (await session.ask(EASY, **none)).answer == (await session.ask(EASY)).answer  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"enum": list(range(200_000))},
        json.loads('{"not":' * 400 + "{}" + "}" * 400),
    ],
)
async def test_a_schema_that_cannot_be_checked_is_refused_before_a_call(schema):
    pool, clients = one_worker("{}")
    form = ResponseFormat(kind="json_schema", schema=schema)
    async with batuta.open(pool, clients=clients) as session:
        with pytest.raises(ValueError, match="response_format: "):
            await session.ask("A question", response_format=form)
        assert session.spent.usd == 0 and not clients[ONE].requests
