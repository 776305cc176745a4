"""A workflow that waits for its caller's tools and goes on is two runs, and each call is billed once."""

from dataclasses import replace
from decimal import Decimal

import pytest

from batuta.clients import ScriptedClient
from batuta.core import Finish, ToolCall
from batuta.store.spend_report import report_spending
from gateway.keyed_server import COST, HELLO, KeyedServer

from .test_tenants import bucket_of

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": TOOL["parameters"]}}
CALL = replace(
    HELLO,
    text="",
    tool_calls=(ToolCall(id="c", name="look", arguments="{}"),),
    finish=Finish.TOOL_CALLS,
)


class Crew:
    """Two workers: the second one looks before it answers."""

    def __init__(self, store):
        self.ada = ScriptedClient([HELLO])
        self.bob = ScriptedClient([CALL, HELLO])
        self.keyed = KeyedServer(store, background=True, ada=self.ada, bob=self.bob)

    @property
    def calls(self):
        return len(self.ada.requests) + len(self.bob.requests)


async def settled(keyed, key, calls):
    await keyed.store.flush()
    [found] = await report_spending(keyed.store.database, ("tenant",))
    [full] = await keyed.store.budgets.budget_status([bucket_of(key)])
    assert calls == 3
    assert (found.cost.usd, full.spent, full.reserved) == (3 * COST, 3 * COST * 10**9, 0)


async def test_over_chat_completions(store):
    crew = Crew(store)
    async with crew.keyed as keyed:
        key = await keyed.key(per_day=Decimal(1))
        body = {"model": "batuta-ultra", "messages": [{"role": "user", "content": "hi"}], "tools": [CHAT_TOOL]}  # fmt: skip
        _, first, asked = await keyed.chat(key, **body)
        turn = asked["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "sun"}
        body["messages"] += [turn, result]
        _, then, told = await keyed.chat(key, **body)
        assert told["choices"][0]["message"]["content"] == "Hello."
        assert [h["x-batuta-cost-usd"] for h in (first, then)] == [str(2 * COST), str(COST)]
        await settled(keyed, key, crew.calls)


async def test_over_responses_with_the_second_part_in_the_background(store):
    crew = Crew(store)
    async with crew.keyed as keyed:
        key = await keyed.key(per_day=Decimal(1))
        body = {"model": "batuta-ultra", "input": "hi", "tools": [TOOL]}
        _, _, asked = await keyed.ask(key, "/v1/responses", json=body)
        call = asked["output"][-1]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        body |= {"input": [output], "previous_response_id": asked["id"], "background": True}
        _, _, queued = await keyed.ask(key, "/v1/responses", json=body)
        stream = f"/v1/responses/{queued['id']}?stream=true"
        headers = {"authorization": f"Bearer {key}"}
        async with keyed.serving.http.get(stream, headers=headers) as response:
            assert "response.completed" in await response.text()
        await settled(keyed, key, crew.calls)
