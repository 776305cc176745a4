"""Bodies of 15 MB, as large as one may be, leave the event loop to others."""

import json
from decimal import Decimal

import pytest

from batuta.core.cost_bound import max_text_tokens
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.app import create_app
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.keyed_server import ADMIN
from gateway.live_server import scripted_state
from gateway.loop_steps import PATHS, Echo, LoopbackApp, hold, watched_steps

pytestmark = pytest.mark.anyio
SIZE = 15_000_000
CONVERSATIONS = {
    "one text": ["word " * (SIZE // 5)],
    "other letters": ["漢字é" * (SIZE // 8)],
    "many turns": ["word " * 300] * 9_999,
}


def body_of(path, texts):
    """A streamed request in the path's dialect."""
    turns = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    asked = {"input": turns} if path == "/v1/responses" else {"messages": turns, "max_tokens": 9}
    body = {"model": "worker/ada", "stream": True, **asked}
    return json.dumps(body, ensure_ascii=False).encode()


class KeyedApp(LoopbackApp):
    """A server that is asked with a key that has a budget and rates."""

    @classmethod
    async def open(cls, store):
        loopback, mint = cls(), KeyHasher(b"x" * 32)
        limits = KeyPermissions(per_day=Decimal(10**6), tpm=10**9, rpm=10**4)
        _, issued = await store.keys.create(mint, "acme", "a key", limits)
        gate = Authenticator(store, mint, ADMIN)
        loopback.app_state = scripted_state({"ada": Echo()}, store=store, authenticator=gate)
        app, key = create_app(loopback.app_state), f"Bearer {issued.text}".encode()

        async def keyed(scope, receive, send):
            await app({**scope, "headers": [*scope["headers"], (b"authorization", key)]}, receive, send)  # fmt: skip

        loopback.app = keyed
        return loopback


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("texts", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_a_large_conversation_is_read_without_holding_the_loop(store, path, texts):
    loopback = await KeyedApp.open(store)
    with watched_steps() as steps:
        held, status = await hold(loopback, steps, path, body_of(path, texts))
    assert status == 200
    assert held < 0.04, steps.where


@pytest.mark.parametrize("text", ["漢字é", "e\u0301a", "".join(map(chr, range(0x4E00, 0x9000)))])
def test_a_bound_of_tokens_does_not_depend_on_how_a_text_is_cut(text):
    whole = text * (120_000 // len(text))
    assert max_text_tokens(whole) == max_text_tokens(text) * (120_000 // len(text))
