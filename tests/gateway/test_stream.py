"""Streamed answers: what is said when, and how they end."""

import anyio
import openai
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import RecursiveConductor, best_single_worker
from batuta.core import (
    Finish,
    Limits,
    Outcome,
    Plan,
    Reply,
    Step,
    ToolCall,
    Usage,
    Workflow,
)
from gateway.live_server import (
    HI,
    Breaking,
    Buggy,
    Halting,
    Serving,
    StreamTimeouts,
    scripted_state,
    stored,
)

pytestmark = pytest.mark.anyio


class Again:
    """Corrects whatever was said."""

    name = "again"

    async def plan(self, context, listener=None):
        return Plan(Workflow((Step(subtask="Correct it.", worker=context.pool.workers[0].id),)))


def chunks(frames):
    return [orjson.loads(frame.removeprefix("data: ")) for frame in frames if "{" in frame]


def joined(frames, field="content"):
    deltas = [c["choices"][0]["delta"] for c in chunks(frames) if c.get("choices")]
    return "".join(delta.get(field) or "" for delta in deltas)


async def test_mini_streams_by_the_openai_client():
    reply = Reply(
        text="Hello there, you.", usage=Usage(calls=1, input=10, cached=4, cache_write=0, output=5)
    )
    async with Serving(ada=ScriptedClient([reply])) as server:
        stream = await server.openai.chat.completions.create(  # pyright: ignore[reportCallIssue]
            model="batuta-mini",
            messages=HI,  # pyright: ignore[reportArgumentType]
            stream=True,
            stream_options={"include_usage": True},
        )
        got = [chunk async for chunk in stream]
    assert got[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in got if c.choices) == reply.text
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in got}) == 1
    assert [c.choices[0].finish_reason for c in got if c.choices][-1] == "stop"
    assert got[-1].choices == []
    assert got[-1].usage.total_tokens == 15


async def test_the_frames_of_a_stream():
    async with Serving() as server:
        body = {"stream": True, "model": "batuta-mini", "messages": HI}
        async with server.http.post("/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["x-batuta-run-id"].startswith("run_")
        frames = await server.frames(model="batuta-mini")
    assert frames[-1] == "data: [DONE]"
    assert all("usage" not in chunk for chunk in chunks(frames))
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks(frames)]
    assert finishes == [None] * (len(finishes) - 1) + ["stop"]


async def test_ultra_tells_its_progress_and_streams_the_last_step_only():
    async with Serving(
        ada=ScriptedClient(["Thoughts."]), bob=ScriptedClient(["The end."])
    ) as server:
        frames = await server.frames(model="batuta-ultra", orchestration={"trace": True})
    assert joined(frames) == "The end."
    progress = joined(frames, "reasoning_content").splitlines()
    assert progress == ["Plan: 2 steps", "Step 1/2: ada — Think.", "Step 2/2: bob — Answer."]
    assert chunks(frames)[-1]["orchestration"]["outcome"] == "answered"


async def test_a_worker_streams_its_reasoning_and_its_tool_calls():
    reply = Reply(
        text="Let me see.",
        reasoning="Hm.",
        tool_calls=(
            ToolCall(id="c1", name="a", arguments='{"x":1}'),
            ToolCall(id="c2", name="b", arguments="{}"),
        ),
        finish=Finish.TOOL_CALLS,
    )
    async with Serving(ada=ScriptedClient([reply])) as server:
        tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
        frames = await server.frames(model="worker/ada", tools=tools)
    assert joined(frames, "reasoning_content") == "Hm."
    assert joined(frames) == "Let me see."
    calls = {}
    for chunk in chunks(frames):
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"arguments": ""})
            known["arguments"] += call["function"]["arguments"]
            if "id" in call:
                known.update(id=call["id"], name=call["function"]["name"], type=call["type"])
    assert calls == {
        0: {"id": "c1", "name": "a", "type": "function", "arguments": '{"x":1}'},
        1: {"id": "c2", "name": "b", "type": "function", "arguments": "{}"},
    }
    assert chunks(frames)[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_that_a_later_round_may_replace_is_shown_at_the_end():
    ada = ScriptedClient(lambda _: "Said.")
    app_state = scripted_state(
        {"ada": ada}, conductor=best_single_worker(), limits={"ultra": Limits(rounds=2)}
    )
    async with Serving(app_state) as server:
        frames = await server.frames(model="batuta-ultra")
    assert joined(frames) == "Said."
    assert sum("Said." in frame for frame in frames) == 1
    assert frames[-1] == "data: [DONE]"


async def test_an_error_after_the_200_ends_without_done(store):
    app_state = scripted_state(
        {"ada": Breaking(("Half an ",)), "bob": ScriptedClient(["x"])}, store=store
    )
    async with Serving(app_state) as server:
        frames = await server.frames(model="batuta-mini")
        with pytest.raises(openai.APIError) as caught:
            async for _ in await server.openai.chat.completions.create(  # pyright: ignore[reportCallIssue]
                model="batuta-mini",
                messages=HI,  # pyright: ignore[reportArgumentType]
                stream=True,
            ):
                pass
    assert joined(frames) == "Half an "
    error = orjson.loads(frames[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("upstream_error", "server_error")
    assert "example" not in error["message"]
    assert not any('"finish_reason":"' in frame for frame in frames)
    assert caught.value.code == "upstream_error"
    assert {row.outcome for row in await stored(store, 2)} == {Outcome.FAILED}


async def test_a_fault_of_ours_after_the_200_is_told():
    app_state = scripted_state({"ada": ScriptedClient([])}, conductor=Buggy())
    async with Serving(app_state) as server:
        frames = await server.frames(model="batuta-ultra")
    assert orjson.loads(frames[-1].removeprefix("data: "))["error"]["code"] == "server_error"


async def test_a_deadline_in_the_middle_is_an_error():
    async with Serving(ada=Halting(("Half",))) as server:
        frames = await server.frames(model="batuta-mini", orchestration={"deadline_s": 0.1})
    assert orjson.loads(frames[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


async def test_silence_is_filled_with_comments():
    app_state = scripted_state({"ada": Halting()}, stream_timeouts=StreamTimeouts(keep_alive=0.02))
    async with Serving(app_state) as server:
        frames = await server.frames(model="batuta-mini", orchestration={"deadline_s": 0.3})
    assert frames.count(": keep-alive") >= 5
    assert joined(frames) == ""


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reader_that_goes_away_cancels_the_run(store, stream):
    ada = Halting(("Hel", "lo")) if stream else Halting()
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        body = {"model": "batuta-mini", "messages": HI, "stream": stream}

        async def ask():
            async with server.http.post("/v1/chat/completions", json=body) as response:
                await response.read()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await ada.started.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await ada.cancelled.wait()
        (row,) = await stored(store)
        assert row.outcome is Outcome.CANCELLED
        assert len(server.app_state.request_scopes) == 0
        assert (await store.get(row.id)).header.model == "batuta-mini"


async def test_a_reader_that_does_not_read_is_cut_off(store):
    many = tuple("x" * 65536 for _ in range(400))
    ada = Halting(many)
    app_state = scripted_state(
        {"ada": ada}, store=store, stream_timeouts=StreamTimeouts(keep_alive=0.05, write=0.2)
    )
    async with Serving(app_state) as server:
        host, port = server.url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as line:
            body = orjson.dumps({"model": "batuta-mini", "messages": HI, "stream": True})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
            await line.send(head.encode() + body)
            with anyio.fail_after(60):
                await ada.cancelled.wait()
            (row,) = await stored(store)
    assert row.outcome is Outcome.CANCELLED


async def test_only_the_corrected_answer_is_shown():
    conductor = RecursiveConductor(best_single_worker(), Again())
    ada = ScriptedClient(["Draft.", "Final."])
    app_state = scripted_state(
        {"ada": ada}, conductor=conductor, limits={"ultra": Limits(rounds=2)}
    )
    async with Serving(app_state) as server:
        frames = await server.frames(model="batuta-ultra")
    assert joined(frames) == "Final."
    progress = joined(frames, "reasoning_content").splitlines()
    assert progress == [
        "Plan: 1 step",
        "Step 1/1: ada",
        "Plan: 1 step (round 2)",
        "Step 1/1: ada — Correct it.",
    ]
