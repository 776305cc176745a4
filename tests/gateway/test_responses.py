"""The Responses dialect: bodies, events, what is kept, and the background."""

from typing import Any

import anyio
import openai
import orjson
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from batuta.clients import ScriptedClient
from batuta.core import Delta, Finish, Reply, ToolCall, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ProviderOverloadedError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.http.body import Fields
from batuta.gateway.responses.events import ResponseEventWriter
from batuta.gateway.responses.items import parse_items
from batuta.gateway.responses.stream import SSEEventSink
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.live_server import Breaking, Halting, Serving, StreamTimeouts, scripted_state, stored

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"in": {"type": "string"}}},
    "strict": True,
}
CALLS = Reply(
    text="",
    tool_calls=(
        ToolCall(id="c1", name="weather", arguments='{"in":"Rome"}'),
        ToolCall(id="c2", name="weather", arguments="{}"),
    ),
    finish=Finish.TOOL_CALLS,
)


def two(store=None, **options):
    clients = {
        "ada": ScriptedClient(lambda _: "Thoughts."),
        "bob": ScriptedClient(lambda _: "The end of it."),
    }
    return scripted_state(clients, store=store, **options)


async def events(server, path="/v1/responses", **body):
    """Every event of a stream, after checking how each is framed and numbered."""
    if "params" in body:
        call = server.http.get(path, params=body.pop("params"))
    else:
        call = server.http.post(path, json={"input": "hi", "stream": True, **body})
    async with call as response:
        text = (await response.read()).decode()
    assert text.endswith("\n\n")
    got = []
    for frame in text[:-2].split("\n\n"):
        kind, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        got.append(event)
    return got


def numbers(events):
    return [event["sequence_number"] for event in events]


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


def added_up(events):
    """The output items that a reader of the events has at the end."""
    items = {}
    for event in events:
        at = event.get("output_index")
        match event["type"].removeprefix("response."):
            case "output_item.added":
                items[at] = event["item"]
            case "content_part.added":
                items[at]["content"].append(event["part"])
            case "output_text.delta":
                items[at]["content"][event["content_index"]]["text"] += event["delta"]
            case "reasoning_summary_part.added":
                items[at]["summary"].append(event["part"])
            case "reasoning_summary_text.delta":
                items[at]["summary"][event["summary_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[at]["arguments"] += event["delta"]
            case "output_item.done":
                items[at]["status"] = "completed"
                assert items[at] == event["item"]
            case _:
                pass
    return [items[at] for at in sorted(items)]


async def test_a_response_by_the_openai_client():
    first = Reply(
        text="Thoughts.",
        usage=Usage(calls=1, input=100, cached=60, cache_write=0, output=20, reasoning=5),
    )
    last = Reply(
        text="The end of it.",
        usage=Usage(calls=1, input=200, cached=10, cache_write=3, output=30, reasoning=7),
    )
    async with Serving(ada=ScriptedClient([first]), bob=ScriptedClient([last])) as server:
        raw = await server.openai.responses.with_raw_response.create(
            model="batuta-ultra", input="hi", instructions="Be kind.", metadata={"a": "b"}
        )
        got = raw.parse()
    assert got.output_text == "The end of it."
    assert (got.status, got.object, got.model) == ("completed", "response", "batuta-ultra")
    assert (got.instructions, got.metadata) == ("Be kind.", {"a": "b"})
    assert got.id.removeprefix("resp_") == raw.headers["x-batuta-run-id"].removeprefix("run_")
    usage = got.usage.model_dump(exclude_none=True)
    assert usage == {
        "input_tokens": 200,
        "output_tokens": 30,
        "total_tokens": 350,
        "input_tokens_details": {
            "cached_tokens": 10,
            "cache_write_tokens": 3,
            "orchestration_input_tokens": 100,
            "orchestration_input_cached_tokens": 60,
        },
        "output_tokens_details": {"reasoning_tokens": 7, "orchestration_output_tokens": 20},
    }


async def test_what_a_worker_is_asked():
    ada = ScriptedClient([CALLS])
    async with Serving(ada=ada) as server:
        await server.openai.responses.create(
            model="worker/ada",
            instructions="Be kind.",
            input=[
                {"role": "user", "content": [{"type": "input_text", "text": "What?"}]},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "Plan: 1 step"}],
                    "content": [{"type": "reasoning_text", "text": "hm"}],
                    "encrypted_content": None,
                },
                {"type": "message", "role": "assistant", "content": "I look."},
                {
                    "type": "function_call",
                    "call_id": "c0",
                    "name": "weather",
                    "arguments": "{}",
                },
                {"type": "function_call_output", "call_id": "c0", "output": "sunny"},
                {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+x"},
                {
                    "type": "custom_tool_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "done"}],
                },
            ],
            tools=[WEATHER, {"type": "web_search"}],  # pyright: ignore[reportArgumentType]
            tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False,
            temperature=0.5,
            top_p=0.9,
            max_output_tokens=7,
            reasoning={"effort": "high", "summary": "auto"},
            text={"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": True}},
        )
    asked = ada.requests[0]
    roles = [message.role.value for message in asked.messages]
    assert roles == ["developer", "user", "assistant", "tool", "assistant", "tool"]
    spoken = asked.messages[2]
    assert (spoken.text, spoken.reasoning, spoken.parts[1].id) == ("I look.", "hm", "c0")  # pyright: ignore[reportAttributeAccessIssue]
    assert asked.messages[4].parts[0].arguments == '{"input":"+x"}'  # pyright: ignore[reportAttributeAccessIssue]
    assert asked.messages[5].parts[0].content == "done"  # pyright: ignore[reportAttributeAccessIssue]
    assert [tool.name for tool in asked.tools] == ["weather"]
    assert (asked.tool_choice, asked.parallel_tool_calls) == ("weather", False)
    assert (asked.response_format.kind, asked.response_format.strict) == ("json_schema", True)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.9, 7)


def test_pictures_that_tools_return_follow_their_results():
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    seen = [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    items = [
        {**call, "call_id": "a"},
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": seen},
        {"type": "function_call_output", "call_id": "b", "output": "nothing"},
    ]
    for then in ([], [{"role": "user", "content": "And?"}]):
        turns = parse_items([Fields(item) for item in (*items, *then)])
        assert [m.role.value for m in turns[:4]] == ["assistant", "tool", "tool", "user"]
        assert turns[3].text == "What the tool call a returned:"
        assert [image.url for image in turns[3].images] == ["data:image/png;base64,AA=="]
        assert len(turns) == 4 + len(then)


async def test_what_is_left_out_is_told():
    body = {
        "model": "worker/ada",
        "input": [{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "ws"}],
        "tools": [WEATHER, {"type": "namespace", "name": "n", "tools": []}, {"type": "mcp"}],
        "top_k": 3,
        "client_metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
    }
    async with Serving(ada=ScriptedClient(["ok"])) as server:
        status, headers, got = await server.post("/v1/responses", json=body)
    assert status == 200
    told = headers["x-batuta-ignored"]
    assert told == "top_k, client_metadata, tools.mcp, input.web_search_call"
    assert [tool["type"] for tool in got["tools"]] == ["function", "namespace"]


async def test_the_events_of_a_workflow():
    async with Serving(two()) as server:
        got = await events(server, model="batuta-ultra")
    assert numbers(got) == list(range(len(got)))
    assert kinds(got)[:2] == ["created", "in_progress"]
    assert kinds(got)[-1] == "completed"
    assert sum(kind in {"completed", "incomplete", "failed"} for kind in kinds(got)) == 1
    final = got[-1]["response"]
    assert added_up(got) == final["output"]
    reasoning, message = final["output"]
    told = [part["text"] for part in reasoning["summary"]]
    assert told == ["Plan: 2 steps", "Step 1/2: ada — Think.", "Step 2/2: bob — Answer."]
    assert message["content"][0]["text"] == "The end of it."
    assert got[0]["response"]["status"] == "in_progress"
    assert got[0]["response"]["output"] == []
    text = [event["delta"] for event in got if event["type"].endswith("output_text.delta")]
    assert len(text) > 1


async def test_reasoning_and_calls_are_streamed_by_the_openai_client():
    reply = Reply(
        text="I look.", reasoning="Hm.", tool_calls=CALLS.tool_calls, finish=Finish.TOOL_CALLS
    )
    async with Serving(ada=ScriptedClient([reply])) as server:
        async with server.openai.responses.stream(
            model="worker/ada",
            input="hi",
            tools=[WEATHER],  # pyright: ignore[reportArgumentType]
        ) as stream:
            got = [event.sequence_number async for event in stream]
            final = await stream.get_final_response()
    assert [item.type for item in final.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert final.output[0].summary[0].text == "Hm."  # pyright: ignore[reportAttributeAccessIssue]
    assert [(c.call_id, c.arguments) for c in final.output[2:]] == [  # pyright: ignore[reportAttributeAccessIssue]
        ("c1", '{"in":"Rome"}'),
        ("c2", "{}"),
    ]
    assert got == list(range(len(got)))


async def test_whole_and_streamed_say_the_same():
    async with Serving(ada=ScriptedClient(lambda _: CALLS)) as server:
        body = {"model": "worker/ada", "input": "", "tools": [WEATHER]}
        _, _, whole = await server.post("/v1/responses", json=body)
        streamed = (await events(server, **body))[-1]["response"]
    for response in (whole, streamed):
        for item in response["output"]:
            item.pop("id")
        for name in ("id", "created_at", "completed_at"):
            response.pop(name)
    assert whole == streamed


async def test_a_cut_answer_is_incomplete():
    reply = Reply(text="cut", finish=Finish.LENGTH)
    async with Serving(ada=ScriptedClient(lambda _: reply)) as server:
        got = await events(server, model="worker/ada", max_output_tokens=1)
        _, _, whole = await server.post(
            "/v1/responses", json={"model": "worker/ada", "input": "x", "max_output_tokens": 1}
        )
    assert got[-1]["type"] == "response.incomplete"
    for response in (got[-1]["response"], whole):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["completed_at"] is None


class Refusing:
    """Refuses in two pieces."""

    async def complete(self, request, listener=NULL_LISTENER):
        for piece in ("I can", "not."):
            await listener.on_delta(Delta(text=piece, is_refusal=True))
        return Reply(text="I cannot.", is_refusal=True, finish=Finish.CONTENT_FILTER)


class Number(BaseModel):
    n: int


@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_a_refusal_is_no_text_that_a_client_parses(store, model):
    async with Serving(scripted_state({"ada": Refusing()}, store=store)) as server:
        api = server.openai.responses
        whole = await api.parse(model=model, input="x", text_format=Number)
        async with api.stream(model=model, input="x", text_format=Number) as stream:
            seen: list[Any] = [event async for event in stream]
        pieces = await events(server, model=model)
        _, again = await server.get(f"/v1/responses/{seen[-1].response.id}")
        told = await events(server, f"/v1/responses/{whole.id}", params={"stream": "true"})
        back = {"input": [*again["output"], {"role": "user", "content": "Why?"}]}
        status, _, _ = await server.post("/v1/responses", json={"model": model, **back})
    for response in (whole, seen[-1].response, Response.model_validate(again)):
        parts: list[Any] = []
        for item in response.output:
            parts += item.content if item.type == "message" else []
        assert [(part.type, part.refusal) for part in parts] == [("refusal", "I cannot.")]
        assert response.status == "completed" and response.output_text == ""
    assert "".join(e.delta for e in seen if e.type == "response.refusal.delta") == "I cannot."
    assert [e["refusal"] for e in told if e["type"] == "response.refusal.done"] == ["I cannot."]
    assert status == 200
    assert [e["delta"] for e in pieces if e["type"] == "response.refusal.delta"] == [
        "I can",
        "not.",
    ]


async def test_a_broken_answer_fails_and_says_so_without_secrets(store):
    app_state = scripted_state(
        {"ada": Breaking(("Half an ",)), "bob": ScriptedClient(["x"])}, store=store
    )
    async with Serving(app_state) as server:
        got = await events(server, model="batuta-mini")
        kept = await server.get(f"/v1/responses/{got[-1]['response']['id']}")
    assert got[-1]["type"] == "response.failed"
    failed = got[-1]["response"]
    assert failed["error"]["code"] == "upstream_error"
    assert "example" not in orjson.dumps(failed).decode()
    assert failed["output"][-1]["status"] == "incomplete"
    assert failed["output"][-1]["content"][0]["text"] == "Half an "
    assert kept == (200, failed)


async def test_before_anything_is_said_an_error_is_an_error():
    async with Serving(ada=ScriptedClient([ProviderOverloadedError("x")] * 9)) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            await server.openai.responses.create(model="worker/ada", input="hi")
        assert caught.value.status_code == 502
        with pytest.raises(openai.NotFoundError):
            await server.openai.responses.create(model="nobody", input="hi", stream=True)


async def test_signs_of_life_are_events_with_numbers():
    app_state = scripted_state(
        {"ada": Halting(())}, stream_timeouts=StreamTimeouts(keep_alive=0.02)
    )
    async with Serving(app_state) as server:
        body = {"model": "worker/ada", "orchestration": {"deadline_s": 0.15}}
        got = await events(server, **body)
    assert kinds(got).count("in_progress") > 2
    assert numbers(got) == list(range(len(got)))
    assert got[-1]["response"]["error"]["code"] == "deadline_exceeded"


async def test_a_reader_who_leaves_ends_the_calls():
    slow = Halting(("Half",))
    async with Serving(ada=slow) as server:
        body = {"model": "worker/ada", "input": "x", "stream": True}
        async with server.http.post("/v1/responses", json=body) as response:
            await response.content.readany()
            await slow.started.wait()
        with anyio.fail_after(60):
            await slow.cancelled.wait()


async def test_a_conversation_goes_on_from_what_was_stored(store):
    ada = ScriptedClient(lambda request: CALLS if len(request.messages) == 2 else "Sunny.")
    app_state = scripted_state({"ada": ada}, store=store)
    async with Serving(app_state) as server:
        create = server.openai.responses.create
        first = await create(model="worker/ada", input="Rome?", instructions="A", tools=[WEATHER])  # pyright: ignore[reportArgumentType]
        outputs = [
            {"type": "function_call_output", "call_id": name, "output": "sun"}
            for name in ("c1", "c2")
        ]
        second = await create(
            model="worker/ada",
            input=outputs,  # pyright: ignore[reportArgumentType]
            previous_response_id=first.id,
            instructions="B",
            tools=[WEATHER],  # pyright: ignore[reportArgumentType]
        )
        third = await create(model="worker/ada", input="Sure?", previous_response_id=second.id)
        referred = await create(
            model="worker/ada",
            input=[
                {"role": "user", "content": "Rome?"},
                {"type": "item_reference", "id": second.output[0].id},  # pyright: ignore[reportArgumentType]
                {"role": "user", "content": "Sure?"},
            ],
        )
    assert second.output_text == third.output_text == referred.output_text == "Sunny."
    roles = [[m.role.value for m in request.messages] for request in ada.requests]
    assert roles == [
        ["developer", "user"],
        ["developer", "user", "assistant", "tool", "tool"],
        ["user", "assistant", "tool", "tool", "assistant", "user"],
        ["user", "assistant", "user"],
    ]
    assert ada.requests[1].messages[0].text == "B"
    assert ada.requests[3].messages[1].text == "Sunny."


async def test_what_is_stored_is_read_paged_told_again_and_deleted(store):
    async with Serving(two(store)) as server:
        api = server.openai.responses
        texts = [{"role": "user", "content": f"t{n}"} for n in range(5)]
        made = await api.create(model="batuta-ultra", input=texts)  # pyright: ignore[reportArgumentType]
        assert (await api.retrieve(made.id)).to_dict() == made.to_dict()
        page = await api.input_items.list(made.id, limit=2)
        assert [item.content[0].text for item in page.data] == ["t4", "t3"]  # pyright: ignore[reportAttributeAccessIssue]
        every = [i async for i in api.input_items.list(made.id, limit=2, order="asc")]
        assert [item.content[0].text for item in every] == [f"t{n}" for n in range(5)]  # pyright: ignore[reportAttributeAccessIssue]
        again = await events(server, f"/v1/responses/{made.id}", params={"stream": "true"})
        assert added_up(again) == made.to_dict()["output"]
        assert numbers(again) == list(range(len(again)))
        await api.delete(made.id)
        for path in ("", "/input_items", "?stream=true"):
            status, body = await server.get(f"/v1/responses/{made.id}{path}")
            assert (status, body["error"]["code"]) == (404, "not_found")
        with pytest.raises(openai.BadRequestError) as caught:
            await api.create(model="batuta-ultra", input="x", previous_response_id=made.id)
        assert caught.value.code == "previous_response_not_found"


async def test_pages_of_items_that_a_client_gave_one_id_end(store):
    given = [{"role": "user", "content": f"t{n}", "id": ("a", "b", "a", 5)[n]} for n in range(4)]
    async with Serving(two(store)) as server:
        _, _, made = await server.post(
            "/v1/responses", json={"model": "batuta-ultra", "input": given}
        )
        texts, after = [], {}
        while len(texts) <= len(given):
            query = {"limit": "1", "order": "asc", **after}
            _, page = await server.get(f"/v1/responses/{made['id']}/input_items", params=query)
            texts += [item["content"][0]["text"] for item in page["data"]]
            after = {"after": page["last_id"]}
            if not page["has_more"]:
                break
    assert texts == [f"t{n}" for n in range(4)]


async def test_a_stream_is_told_again_event_by_event(store):
    async with Serving(two(store)) as server:
        first = await events(server, model="batuta-ultra")
        path = f"/v1/responses/{first[-1]['response']['id']}"
        params = {"stream": "true", "starting_after": "6"}
        assert await events(server, path, params=params) == first[7:]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_must_not_be_stored_is_not(store, stream):
    async with Serving(two(store)) as server:
        if stream:
            got = (await events(server, model="batuta-mini", store=False))[-1]["response"]
        else:
            body = {"model": "batuta-mini", "input": "x", "store": False}
            _, _, got = await server.post("/v1/responses", json=body)
        status, _ = await server.get(f"/v1/responses/{got['id']}")
        assert (status, got["store"]) == (404, False)
        status, _ = await server.get(f"/v1/runs/{got['id'].replace('resp_', 'run_')}")
        assert status == 404


async def until(server, name, *states):
    with anyio.fail_after(60):
        while True:
            _, body = await server.get(f"/v1/responses/{name}")
            if body["status"] in states:
                return body
            await anyio.sleep(0.01)


async def test_the_background_answers_after_the_reader_has_gone(store):
    async with Serving(two(store), background=True) as server:
        made = await server.openai.responses.create(
            model="batuta-ultra", input="hi", background=True
        )
        assert (made.status, made.output) == ("queued", [])
        done = await until(server, made.id, "completed")
        assert done["output"][-1]["content"][0]["text"] == "The end of it."
        assert done["background"] is True
        told = await events(server, f"/v1/responses/{made.id}", params={"stream": "true"})
        assert numbers(told) == list(range(len(told)))
        assert told[-1]["response"] == done
        after = {"stream": "true", "starting_after": "5"}
        assert await events(server, f"/v1/responses/{made.id}", params=after) == told[6:]
        again = await server.openai.responses.create(
            model="batuta-ultra", input="more", previous_response_id=made.id
        )
        assert again.status == "completed"
    assert len(await stored(store, 2)) == 2


async def test_events_keep_their_order_while_the_last_one_waits_to_be_stored():
    sent = []

    async def send(message):
        sent.append(message.get("body", b"").decode())

    events = ResponseEventWriter({"status": "in_progress"})
    sink = SSEEventSink(send, StreamTimeouts(keep_alive=0.0), events.keep_alive, keep_events=True)
    await sink.open({})
    for event in events.begin():
        await sink.send(event)
    await sink.writer.tick()
    end = events.end({"status": "completed"})
    await sink.writer.tick()  # the database is slow
    await sink.send(end, last=True)
    told = [orjson.loads(frame.split("data: ")[1]) for frame in sent if "data: " in frame]
    assert [event["sequence_number"] for event in told] == [0, 1, 2, 3]
    assert told[-1]["type"] == "response.completed"
    assert sent[-2] == ": keep-alive\n\n"


async def test_a_stream_of_the_background_can_be_left_and_resumed(store):
    app_state = scripted_state(
        {"ada": Halting(("One ", "two"))}, store=store, stream_timeouts=StreamTimeouts(0.02)
    )
    async with Serving(app_state, background=True) as server:
        body = {"model": "worker/ada", "input": "x", "stream": True, "background": True}
        async with server.http.post("/v1/responses", json=body) as response:
            seen = b""
            while b'"sequence_number":1' not in seen or not seen.endswith(b"\n\n"):
                seen += await response.content.readany()
        frames = [frame for frame in seen.decode().split("\n\n") if frame]
        first = [orjson.loads(frame.split("data: ")[1]) for frame in frames]
        name, last = first[0]["response"]["id"], first[-1]["sequence_number"]
        assert (await until(server, name, "in_progress"))["output"] == []
        async with server.http.get(
            f"/v1/responses/{name}", params={"stream": "true", "starting_after": str(last)}
        ) as response:
            sign = orjson.loads((await response.content.readany()).decode().split("data: ")[1])
            assert (sign["type"], sign["sequence_number"]) == ("response.in_progress", last)
            cancelled = await server.openai.responses.cancel(name)
            rest = (await response.content.read()).decode()
        assert cancelled.status == "cancelled"
        end = orjson.loads(rest.split("data: ")[-1])
        assert (end["response"]["status"], end["sequence_number"]) == ("cancelled", last + 1)
        with anyio.fail_after(60):
            await app_state.catalogue.clients["ada"].cancelled.wait()  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        assert (await server.openai.responses.cancel(name)).status == "cancelled"
        assert (await until(server, name, "cancelled"))["id"] == name


async def test_what_the_process_lost_has_failed(store):
    async with Serving(scripted_state({"ada": Halting()}, store=store), background=True) as server:
        made = await server.openai.responses.create(model="worker/ada", input="hi", background=True)
        await until(server, made.id, "in_progress")
    async with Serving(two(store), background=True) as server:
        got = await server.openai.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError):
            await server.openai.responses.create(
                model="batuta-mini", input="hi", previous_response_id=made.id
            )
    assert (got.status, got.error.code) == ("failed", "server_error")


async def test_deleting_what_runs_ends_it(store):
    slow = Halting()
    async with Serving(scripted_state({"ada": slow}, store=store), background=True) as server:
        made = await server.openai.responses.create(model="worker/ada", input="hi", background=True)
        await slow.started.wait()
        await server.openai.responses.delete(made.id)
        with anyio.fail_after(60):
            await slow.cancelled.wait()
        assert (await server.get(f"/v1/responses/{made.id}"))[0] == 404


async def test_a_job_that_fails_says_why(store):
    async with Serving(
        scripted_state({"ada": ScriptedClient([ProviderOverloadedError("x")] * 9)}, store=store),
        background=True,
    ) as server:
        made = await server.openai.responses.create(model="worker/ada", input="hi", background=True)
        got = await until(server, made.id, "failed")
    assert got["error"]["code"] == "upstream_error"


async def test_a_job_counts_once_against_the_rates_of_its_key(store):
    mint = KeyHasher(b"x" * 32)
    _, issued = await store.keys.create(mint, "acme", "a key", KeyPermissions(rpm=1, concurrency=1))
    app_state = two(store, authenticator=Authenticator(store, mint, "the-admins-own-token"))
    async with Serving(app_state, background=True) as server:
        headers = {"authorization": f"Bearer {issued.text}"}
        body = {"model": "batuta-mini", "input": "x", "background": True}
        _, _, made = await server.post("/v1/responses", json=body, headers=headers)
        with anyio.fail_after(60):
            while made["status"] in {"queued", "in_progress"}:
                _, made = await server.get(f"/v1/responses/{made['id']}", headers=headers)
                await anyio.sleep(0.01)
        status, _, _ = await server.post("/v1/responses", json=body, headers=headers)
    assert (made["status"], status) == ("completed", 429)
    assert (await stored(store))[0].tenant == "acme"


async def test_only_the_background_can_be_cancelled(store):
    async with Serving(two(store)) as server:
        made = await server.openai.responses.create(model="batuta-mini", input="hi")
        with pytest.raises(openai.BadRequestError):
            await server.openai.responses.cancel(made.id)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?stream=maybe", "stream"),
        ("?starting_after=-1", "starting_after"),
        ("?starting_after=x", "starting_after"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=1e9", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=nobody", "after"),
    ],
)
async def test_odd_queries_are_400s(store, path, param):
    async with Serving(two(store)) as server:
        made = await server.openai.responses.create(model="batuta-mini", input="hi")
        status, body = await server.get(f"/v1/responses/{made.id}{path}")
    assert (status, body["error"]["param"]) == (400, param)


async def test_a_server_that_keeps_nothing_says_so():
    async with Serving(two()) as server:
        for extra in ({"background": True}, {"previous_response_id": "resp_1"}):
            body = {"model": "batuta-mini", "input": "x", **extra}
            status, _, got = await server.post("/v1/responses", json=body)
            assert (status, got["error"]["param"]) == (400, next(iter(extra)))
            assert "keeps no responses" in got["error"]["message"]
