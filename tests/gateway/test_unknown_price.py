"""What a call without a price counts as: as the settings file says, against budgets alone."""

from decimal import Decimal

import pytest

from batuta.clients import HttpTransport
from batuta.core import Price
from batuta.gateway import ServerState
from batuta.gateway.assemble import ServeOptions
from batuta.store.spend_report import report_spending
from batuta.usage import ASSUMED_PRICE
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving

pytestmark = pytest.mark.anyio

WORKERS = """
[[workers]]
id = "ada"
provider = "compatible"
base_url = "{url}"
model = "m"
key_env = "PROVIDER_KEY"

[conductor]
worker = "best"
"""
CHEAP = "\n[limits]\nunknown_price = { input = 1, output = 2 }\n"
COUNTED = Price(input=Decimal(1), output=Decimal(2))


def cast(tmp_path, provider, more):
    file = tmp_path / "batuta.toml"
    file.write_text(WORKERS.format(url=provider.url) + more)
    return ServeOptions(
        pool=str(file), conductor=None, history=None, cascade=None, checker=None, folders=()
    )


@pytest.mark.parametrize(("more", "price"), [("", ASSUMED_PRICE), (CHEAP, COUNTED)])
async def test_every_model_counts_it_as_the_settings_say(tmp_path, monkeypatch, more, price):
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    async with FakeOpenAI() as provider, HttpTransport() as http:
        casting = cast(tmp_path, provider, more)
        scripted_state = casting.build_catalogue(await casting.load_config(http))
    assert {model.limits.unknown for model in scripted_state.models} == {price}
    assert {"batuta-mini", "batuta-ultra", "worker/ada"} < {m.name for m in scripted_state.models}


async def test_a_budget_holds_at_the_price_that_is_set(tmp_path, monkeypatch, store):
    """256 tokens may cost $0.02 at the usual price, and nearly nothing at this one."""
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    answered = {}
    async with FakeOpenAI(strict_openai=False) as provider, HttpTransport() as http:
        for name, more in (("usual", ""), ("cheap", CHEAP)):
            keyed, casting = KeyedServer(store), cast(tmp_path, provider, more)
            catalogue = casting.build_catalogue(await casting.load_config(http))
            keyed.serving = Serving(
                ServerState(catalogue=catalogue, store=store, authenticator=keyed.gate)
            )
            async with keyed:
                key = await keyed.key(per_day=Decimal("0.02"))
                answered[name] = await keyed.chat(key, model="batuta-mini", messages=HI)
    assert answered["usual"][2]["error"]["code"] == "budget_exceeded"
    status, headers, body = answered["cheap"]
    assert (status, headers["x-batuta-unpriced-calls"]) == (200, "1")
    await store.flush()
    found = [
        one for one in await report_spending(store.database, ("kind",)) if one.group == ("worker",)
    ]
    used = body["usage"]
    millions = used["prompt_tokens"] * COUNTED.input + used["completion_tokens"] * COUNTED.output
    assert [(one.cost.usd, one.assumed_usd) for one in found] == [(0, millions / 1_000_000)]
