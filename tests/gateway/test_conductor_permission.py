"""A key that does not allow the conductor's model neither sees nor uses what that model conducts."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import LLMConductor
from batuta.core import Worker, WorkerId
from batuta.gateway.access.caller import Authenticator
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
DRAFT = "model_id = [0]\nsubtasks = ['Answer.']\naccess_list = [[]]"


@pytest.mark.parametrize(("denied", "allowed"), [((), True), (("boss",), False)])
async def test_a_key_must_allow_the_model_that_conducts(store, denied, allowed):
    hasher = KeyHasher(b"x" * 32)
    permissions = KeyPermissions(workers_deny=denied)
    _, issued = await store.keys.create(hasher, "acme", "k", permissions)
    conductor = LLMConductor(
        name="anything",
        client=ScriptedClient(lambda _: DRAFT),
        worker=Worker(id=WorkerId("boss"), model="m"),
    )
    state = scripted_state(
        {"ada": ScriptedClient(lambda _: "Done.")},
        conductor=conductor,
        store=store,
        authenticator=Authenticator(store, hasher),
    )
    async with Serving(state) as server:
        key = {"authorization": f"Bearer {issued.text}"}
        _, listed = await server.get("/v1/models", headers=key)
        status, _, got = await server.post(
            json={"model": "batuta-ultra", "messages": HI}, headers=key
        )
    assert ("batuta-ultra" in {one["id"] for one in listed["data"]}) is allowed
    assert "worker/ada" in {one["id"] for one in listed["data"]}
    assert status == (200 if allowed else 403)
    if not allowed:
        assert "does not allow the worker 'boss', which conducts" in got["error"]["message"]
