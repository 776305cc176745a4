"""A server with keys, and what is asked of it."""

from __future__ import annotations

from decimal import Decimal

from batuta.clients import ScriptedClient
from batuta.core import Cost, Reply, Usage
from batuta.gateway.access.caller import Authenticator
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.live_server import HI, Serving, scripted_state

ADMIN = "the-admins-own-token"
COST = Decimal("0.002")  # 1,000 tokens in at $1 and 500 out at $2 a million
HELLO = Reply(text="Hello.", usage=Usage(calls=1, input=1000, output=500), cost=Cost(COST))
CHAT = {"model": "worker/ada", "messages": HI}


class KeyedServer:
    """A server with keys, and what is asked of it."""

    def __init__(
        self, store: Store, seeing: tuple[str, ...] = (), *, background: bool = False, **clients
    ) -> None:
        self.store = store
        self.mint = KeyHasher(b"x" * 32)
        self.gate = Authenticator(store, self.mint, ADMIN)
        clients = clients or {name: ScriptedClient(lambda _: HELLO) for name in ("ada", "bob")}
        self.serving = Serving(
            scripted_state(clients, store=store, authenticator=self.gate, seeing=seeing),
            background=background,
        )

    async def key(self, tenant="acme", expires=None, **limits) -> str:
        _, issued = await self.store.keys.create(
            self.mint, tenant, "a key", KeyPermissions(**limits), expires=expires
        )
        return issued.text

    async def __aenter__(self):
        await self.serving.__aenter__()
        return self

    async def __aexit__(self, *error):
        return await self.serving.__aexit__(*error)

    async def ask(self, key, path="/v1/chat/completions", method="POST", **options):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self.serving.http.request(method, path, headers=headers, **options) as response:
            return response.status, response.headers, await response.json()

    async def chat(self, key, **body):
        return await self.ask(key, json={**CHAT, **body})
