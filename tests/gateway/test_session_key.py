"""Which session a request belongs to, and what is known of it afterwards."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Question, Reply, assistant_message, system_message, user_message
from batuta.gateway.http.body import Fields, session_header
from batuta.gateway.serving.parsed_call import LONGEST_NAME, client_session, session_id
from batuta.store import Store
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio
CLAUDE = {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s-1"})}}
TEXTS = st.text(max_size=20)


def test_the_first_name_that_a_client_gives_is_its_session():
    def named(body, *headers):
        return client_session(Fields(body, session=session_header(headers)))

    claude = (b"x-claude-code-session-id", b"c-1")
    codex = (b"session-id", b"x-1")
    both = {"prompt_cache_key": "k-1", **CLAUDE}
    assert named(both, codex, claude, (b"x-session-id", b"mine")) == "mine"
    assert named(both, codex, claude) == "c-1"
    assert named(both, codex, (b"thread-id", b"t")) == "x-1"
    assert named(both) == "k-1"
    assert named(CLAUDE) == "s-1"
    older = {"metadata": {"user_id": "user_ab_account_cd_session_s-2"}}
    assert named(older) == "s-2"
    assert named({"metadata": {"user_id": "somebody"}}) == ""
    assert named({}) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"prompt_cache_key": ["x"]},
        {"prompt_cache_key": "x" * (LONGEST_NAME + 1)},
        {"metadata": "x"},
        {"metadata": {"user_id": 5}},
        {"metadata": {"user_id": "{"}},
        {"metadata": {"user_id": "{" * 5000}},
        {"metadata": {"user_id": '{"session_id": {"a": 1}}'}},
        {"metadata": {"user_id": '{"session_id": "\ud800'}},
        {"metadata": {"user_id": json.dumps({"session_id": "x" * 500})}},
    ],
)
def test_what_cannot_be_a_name_is_none(body):
    assert client_session(Fields(body)) == ""


def test_headers_that_cannot_be_a_name_are_none():
    assert session_header([(b"x-session-id", b"x" * 5000), (b"session-id", b"ok")]) == "ok"
    assert session_header([(b"x-session-id", b"  ")]) == ""
    assert session_header([]) == ""


@given(tenant=TEXTS, other=TEXTS, name=TEXTS, words=TEXTS)
def test_no_two_tenants_share_a_session(tenant, other, name, words):
    question = Question.of(words)
    one, two = (session_id(who, name, question) for who in (tenant, other))
    assert (one == two) == (tenant == other)
    assert len(one) == 36 and one.startswith("ses_") and one[4:].isalnum()


@given(named=TEXTS.filter(bool), first=TEXTS, later=st.lists(TEXTS, max_size=3), system=TEXTS)
def test_a_conversation_stays_in_its_session_as_it_grows(named, first, later, system):
    begun = (system_message(system), user_message(first))
    grown = (
        *begun,
        *(turn for text in later for turn in (assistant_message("."), user_message(text))),
    )
    short, long = Question(messages=begun), Question(messages=grown)
    assert session_id("t", "", short) == session_id("t", "", long)
    assert session_id("t", named, short) == session_id("t", named, Question.of("else"))
    assert session_id("t", "", short) != session_id("t", named, short)
    moved = Question(messages=(system_message(system + first), user_message("")))
    if first:
        assert session_id("t", "", short) != session_id("t", "", moved)


def one(**options):
    return scripted_state({"ada": ScriptedClient(lambda _: Reply(text="Hello."))}, **options)


async def test_every_dialect_answers_with_the_session_and_its_runs_are_found(store: Store):
    async with Serving(one(store=store)) as server:
        found = set()
        for path, body in (
            ("/v1/chat/completions", {"messages": HI}),
            ("/v1/messages", {"messages": HI, "max_tokens": 9}),
            ("/v1/responses", {"input": "hi"}),
        ):
            headers = {"x-session-id": "mine"}
            asked = {"model": "worker/ada", **body}
            status, told, _ = await server.post(path, json=asked, headers=headers)
            assert status == 200
            found.add(told["x-batuta-session"])
        (session,) = found
        async with server.http.post(
            "/v1/chat/completions",
            json={"model": "worker/ada", "messages": HI, "stream": True},
            headers={"x-session-id": "another"},
        ) as response:
            assert response.headers["x-batuta-session"] not in {session, None}
            await response.read()
        await stored(store, 4)
        _, listed = await server.get("/v1/runs", params={"session": session})
        assert [run["session"] for run in listed["data"]] == [session] * 3
        _, whole = await server.get(f"/v1/runs/{listed['data'][0]['id']}")
        assert whole["session"] == session
        _, nothing = await server.get("/v1/runs", params={"session": "ses_of_nobody"})
        assert nothing["data"] == []
        body = {"model": "worker/ada", "input": "hi"}
        _, told, _ = await server.post("/v1/embeddings", json=body)
        assert "x-batuta-session" not in told


async def test_a_response_goes_on_in_the_session_of_the_one_before(store: Store):
    async with Serving(one(store=store)) as server:
        body = {"model": "worker/ada", "input": "hi", "prompt_cache_key": "k"}
        _, first, answer = await server.post("/v1/responses", json=body)
        body = {"model": "worker/ada", "input": "more", "previous_response_id": answer["id"]}
        _, second, _ = await server.post("/v1/responses", json=body)
        assert first["x-batuta-session"] == second["x-batuta-session"]


async def test_a_name_of_another_tenant_opens_nothing(store: Store):
    async with KeyedServer(store) as server:
        keys = [await server.key(tenant=name) for name in ("acme", "zeta")]
        sessions = []
        for key in keys:
            headers = {"authorization": f"Bearer {key}", "x-session-id": "same"}
            body = {"model": "worker/ada", "messages": HI}
            _, told, _ = await server.serving.post(json=body, headers=headers)
            sessions.append(told["x-batuta-session"])
        assert sessions[0] != sessions[1]
        await stored(store, 2)
        for key, session in ((keys[0], sessions[1]), (keys[1], sessions[0])):
            _, _, listed = await server.ask(key, f"/v1/runs?session={session}", "GET")
            assert listed["data"] == []


async def test_a_run_in_the_background_keeps_the_session_of_its_request(store: Store):
    headers = {"x-session-id": "mine"}
    body = {"model": "worker/ada", "input": "hi"}
    async with Serving(one(store=store), background=True) as server:
        _, told, _ = await server.post("/v1/responses", json=body, headers=headers)
        status, _, _ = await server.post(
            "/v1/responses", json=body | {"background": True}, headers=headers
        )
        assert status == 200
        rows = await stored(store, 2)
        assert {row.session for row in rows} == {told["x-batuta-session"]}
