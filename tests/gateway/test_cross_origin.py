"""Web pages of other origins use the API where a setting says so, and nothing else of the server."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from batuta.clients import ScriptedClient
from batuta.config.settings import ServerSetting
from batuta.store import Store
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
PAGE = "https://app.example.org"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}
BODY = {"model": "worker/ada", "messages": HI}
CHAT = "/v1/chat/completions"


def server(*origins):
    clients = {"ada": ScriptedClient(lambda _: "Hello.")}
    return Serving(scripted_state(clients, origins=frozenset(origins)))


async def test_a_page_that_is_named_may_ask_and_read():
    async with server(PAGE) as serving:
        async with serving.http.options(CHAT, headers=ASKS) as asked:
            assert asked.status == 204
            assert asked.headers["access-control-allow-origin"] == PAGE
            assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
            assert "POST" in asked.headers["access-control-allow-methods"]
        for body, status in ((BODY, 200), ({}, 400), ({**BODY, "stream": True}, 200)):
            status_, headers, _ = await read(serving, body)
            assert status_ == status
            assert headers["access-control-allow-origin"] == PAGE
            assert "access-control-allow-credentials" not in headers
            assert "x-should-retry" in headers["access-control-expose-headers"]


async def read(serving, body, **headers):
    async with serving.http.post(CHAT, json=body, headers={"origin": PAGE, **headers}) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.parametrize("origins", [(), ("https://other.example.org",), ("*",)])
async def test_other_pages_are_refused_and_without_keys_any_page_is_another(origins):
    async with server(*origins) as serving:
        async with serving.http.options(CHAT, headers=ASKS) as asked:
            assert asked.status == 403 and "access-control-allow-origin" not in asked.headers
        assert (await read(serving, BODY))[0] == 403


@pytest.mark.parametrize("path", ["/", "/v1/admin/keys", "/runs", "/v1x"])
async def test_nothing_but_the_api_is_opened(path):
    async with server(PAGE) as serving:
        async with serving.http.get(path, headers={"origin": PAGE}) as answer:
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


def test_an_origin_is_an_origin():
    assert ServerSetting(cors_origins=("HTTPS://App.example.org/", "*")).cors_origins == (PAGE, "*")
    for wrong in ("app.example.org", "https://a/b", "ftp://a", "null"):
        with pytest.raises(ValidationError, match="an origin must be like"):
            ServerSetting(cors_origins=(wrong,))


async def test_where_keys_are_needed_any_page_may_be_let_in(tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        keyed = KeyedServer(store)
        keyed.serving.app_state = replace(keyed.serving.app_state, origins=frozenset({"*"}))
        async with keyed:
            key = await keyed.key()
            headers = {"authorization": f"Bearer {key}"}
            status, told, _ = await read(keyed.serving, BODY, **headers)
            assert (status, told["access-control-allow-origin"]) == (200, PAGE)
            assert (await read(keyed.serving, BODY))[0] == 401
            assert (await read(keyed.serving, BODY, cookie="batuta_session=x"))[0] == 401
