"""Requests by a name that stands for another model."""

from __future__ import annotations

import pytest

from batuta.clients import ScriptedClient
from batuta.config.aliases import Aliases
from batuta.core import Reply
from batuta.errors import ConfigError
from batuta.store import Store
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, scripted_state, stored

pytestmark = pytest.mark.anyio
TINY = {"clever-*": "batuta-ultra", "tiny": "batuta-mini", "mine-*": "worker/bob"}
COUNT = {"messages": HI}


def two(**options):
    clients = {
        name: ScriptedClient(lambda _, name=name: Reply(text=name)) for name in ("ada", "bob")
    }
    return scripted_state(clients, **options)


async def test_every_dialect_answers_as_the_name_that_was_sent(store: Store):
    async with Serving(two(store=store)) as server:
        body = {"model": "claude-opus-4-8[1m]", "messages": HI}
        for path, more in (
            ("/v1/chat/completions", {}),
            ("/v1/messages", {"max_tokens": 9}),
            ("/v1/responses", {"messages": None, "input": "hi"}),
        ):
            asked = {k: v for k, v in (body | more).items() if v is not None}
            status, _, answer = await server.post(path, json=asked)
            assert (status, answer["model"]) == (200, "claude-opus-4-8[1m]"), answer
        told = {"model": "gpt-5-mini", "messages": HI, "orchestration": {"trace": True}}
        _, _, answer = await server.post(json=told)
        assert answer["model"] == "gpt-5-mini"
        assert answer["orchestration"]["header"]["model"] == "batuta-mini"
        frames = await server.frames(model="gpt-5-mini")
        assert '"model":"gpt-5-mini"' in frames[0]
        rows = await stored(store, 5)
        names = sorted(row.model for row in rows)
        assert names == ["batuta-mini"] * 2 + ["batuta-ultra"] * 3
        status, _, counted = await server.post(
            "/v1/messages/count_tokens", json=COUNT | {"model": "claude-haiku-4-5"}
        )
        assert status == 200 and counted["input_tokens"] > 0


async def test_a_worker_of_that_name_goes_first():
    clients = {
        "gpt-5": ScriptedClient(lambda _: Reply(text="me")),
        "bob": ScriptedClient(lambda _: Reply(text="no")),
    }
    async with Serving(scripted_state(clients)) as server:
        _, headers, answer = await server.post(json={"model": "gpt-5", "messages": HI})
        assert answer["choices"][0]["message"]["content"] == "me" and headers
        _, shown = await server.get("/v1/models/gpt-5")
        assert (shown["id"], shown["alias_of"]) == ("gpt-5", "worker/gpt-5")


async def test_the_list_of_models_says_what_each_alias_stands_for():
    async with Serving(two(aliases=Aliases(TINY))) as server:
        _, listed = await server.get("/v1/models")
        told = {m["id"]: m["alias_of"] for m in listed["data"] if "alias_of" in m}
        assert told == TINY
        assert listed["last_id"] == "mine-*"
        _, shown = await server.get("/v1/models/claude-opus-4-8")
        assert (shown["id"], shown["alias_of"]) == ("claude-opus-4-8", "batuta-ultra")
        status, _ = await server.get("/v1/models/nothing-here")
        assert status == 404


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ({"a": "batuta-ulta"}, "aliases.a: there is no model 'batuta-ulta'; did you mean"),
        ({"a": "b", "b": "batuta-mini"}, "aliases.a: there is no model 'b'"),
        ({"ada": "batuta-mini"}, "aliases.ada: it is the name of worker/ada"),
        ({"batuta-mini": "ada"}, "aliases.batuta-mini: it is the name of batuta-mini"),
    ],
)
def test_an_alias_of_nothing_is_refused(aliases, said):
    with pytest.raises(ConfigError) as caught:
        two(aliases=Aliases(aliases))
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


async def test_permissions_hold_for_what_it_stands_for(store: Store):
    async with KeyedServer(store) as server:
        small = await server.key(models=("batuta-mini",))
        status, _, _ = await server.chat(small, model="claude-haiku-4-5")
        assert status == 200
        status, _, refused = await server.chat(small, model="claude-opus-4-8")
        assert (status, refused["error"]["code"]) == (403, "model_not_allowed")
        named = await server.key(models=("claude-*",))  # of the alias itself a key may say nothing
        status, _, _ = await server.chat(named, model="claude-opus-4-8")
        assert status == 403
        _, _, listed = await server.ask(small, "/v1/models", "GET")
        assert [m["id"] for m in listed["data"]] == ["batuta-mini"]
        status, _, _ = await server.ask(small, "/v1/models/claude-opus-4-8", "GET")
        assert status == 404


async def test_embeddings_know_no_alias():
    async with Serving(two()) as server:
        body = {"model": "gpt-5", "input": "hi"}
        status, _, answer = await server.post("/v1/embeddings", json=body)
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
