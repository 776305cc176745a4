"""What conducting saved: an estimate beside the best single worker, told by API, command and page."""

from __future__ import annotations

from decimal import Decimal

import anyio
import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.conductors.sessions.patterns import Escalate
from batuta.conductors.sessions.state import SessionRules
from batuta.config.tool_settings import PythonSetting, ToolsSetting
from batuta.config.tools import open_served_tools
from batuta.core import Cost, Reply, Usage
from batuta.errors import ClientError
from batuta.store.savings import Saving, ShadowVerdict, list_savings, sum_savings
from batuta.store.spend_report import report_spending
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Halting, Serving
from gateway.test_sessions import Agent, app_state, call, pool, scripted

pytestmark = pytest.mark.anyio


def reply(text="Done.", tokens=1000, cached=0, output=100, usd="0.0012"):
    usage = Usage(calls=1, input=tokens, cached=cached, output=output)
    return Reply(text=text, usage=usage, cost=Cost(Decimal(usd)))


async def told(server, address="/v1/sessions", **options):
    async with server.http.get(address, **options) as response:
        assert response.status == 200
        return await response.json()


async def test_a_session_s_saving_is_what_the_best_single_worker_would_have_cost(store):
    """$10 and $20 a million tokens, $1 of cached ones, where the small one costs a tenth."""
    clients = scripted(small=[call(), reply(tokens=1000, output=100)], big=[])
    async with Serving(app_state(Escalate(), clients, store=store)) as server:
        agent = Agent(server)
        await agent.say("Mend it")
        await agent.bring("x" * 3000)
        answer = await told(server)
        (one,) = answer["data"]
        assert one["session"] == agent.headers["x-batuta-session"] and one["runs"] == 2
        assert Decimal(one["cost_usd"]) == Decimal("0.0024")
        # the first request: 100 tokens in, 10 out
        first = Decimal("0.0012")
        # the second: of its 1000 tokens those of the first were read; a few tokens are our estimate
        second = Decimal(one["best_single_usd_estimate"]) - first
        assert Decimal("0.0115") < second < Decimal("0.012")
        saved = Decimal(one["saved_usd_estimate"])
        assert saved == Decimal(one["best_single_usd_estimate"]) - Decimal(one["cost_usd"])
        assert answer["total"]["saved_usd_estimate"] == one["saved_usd_estimate"]
        runs = await told(server, "/v1/runs")
        estimates = [Decimal(each["best_single_usd_estimate"]) for each in runs["data"]]
        assert sum(estimates) == Decimal(one["best_single_usd_estimate"])
        assert (await told(server, "/v1/sessions?session=ses_none"))["data"] == []
        async with server.http.get("/ui/usage") as response:
            page = await response.text()
        assert "What conducting saved" in page and "by estimate" in page and one["session"] in page
        async with server.http.get("/v1/sessions?limit=0") as response:
            assert response.status == 400
        async with server.http.get("/v1/sessions?model=x") as response:
            assert response.status == 400


async def test_what_the_best_worker_answers_saves_nothing_and_failures_are_worth_nothing(store):
    clients = {
        "small": ScriptedClient([]),
        "big": ScriptedClient([reply(usd="0.012"), reply(usd="0.02", cached=0)]),
    }
    only = pool(small=0.5, big=0.9)
    async with Serving(app_state(None, clients, workers=only, store=store)) as server:
        for _ in range(2):
            body = {"model": "batuta-mini", "messages": HI}
            assert (await server.post(json=body, headers={"x-session-id": "s"}))[0] == 200
        (one,) = (await told(server))["data"]
    assert Decimal(one["cost_usd"]) == Decimal("0.032")
    assert Decimal(one["best_single_usd_estimate"]) == Decimal("0.024")
    assert Decimal(one["saved_usd_estimate"]) == Decimal("-0.008")


async def test_without_a_choice_or_a_price_there_is_no_estimate(store):
    async with KeyedServer(store) as server:
        key, other = await server.key("acme"), await server.key("other")
        await server.ask(key, json={"model": "worker/ada", "messages": HI})
        _, _, answer = await server.ask(key, "/v1/sessions", "GET")
        assert [one["runs"] for one in answer["data"]] == [0]
        assert answer["total"]["saved_share_estimate"] is None
        _, _, none = await server.ask(other, "/v1/sessions", "GET")
        assert none["data"] == [] and none["total"]["runs"] == 0
        assert (await server.ask(other, "/v1/sessions?tenant=acme", "GET"))[0] == 400
        assert (await server.ask(None, "/v1/sessions", "GET"))[0] == 401
    assert await list_savings(store.database, 5, tenant="other") == []
    assert (await sum_savings(store.database)).sentence == "nothing to compare yet"


def test_a_saving_is_told_as_an_estimate_in_both_directions():
    known = {"session": None, "tenant": None, "latest": 0.0, "runs": 3}
    shadows = dict.fromkeys(ShadowVerdict, 0)
    cheap = Saving(
        **known, usd=Decimal(1), alone_usd=Decimal(4), shadows=shadows, shadow_usd=Decimal(0)
    )
    assert (
        cheap.sentence
        == "about $3.00 (75\u00a0%) less than the best single worker alone, by estimate"
    )
    assert cheap.verdicts == ""
    counted = {**shadows, ShadowVerdict.BETTER: 2, ShadowVerdict.SAME: 1}
    dear = Saving(
        **known,
        usd=Decimal(4),
        alone_usd=Decimal(2),
        shadows=counted,
        shadow_usd=Decimal("0.5"),
    )
    assert dear.sentence.startswith("about $2.00 (100\u00a0%) more than")
    assert dear.verdicts == "beside that worker's answers: 2 better, 1 same, for $0.50"


SHADOWED = SessionRules(shadow_share=1.0)
THREE = pool(small=0.5, big=0.9, other=0.7)


async def compared(store, clients, rules=SHADOWED, body=None, wanted=1, **options):
    """Ask once and wait for so many verdicts; the session's saving then."""
    state = app_state(
        Escalate(), clients, workers=THREE, store=store, session_rules=rules, **options
    )
    async with Serving(state) as server:
        asked = {"model": "batuta-ultra", "messages": HI, **(body or {})}
        assert (await server.post(json=asked, headers={"x-session-id": "s"}))[0] == 200
        with anyio.move_on_after(20 if wanted else 0.5):
            while True:
                saving = await sum_savings(store.database)
                if wanted and sum(saving.shadows.values()) >= wanted:
                    break
                await anyio.sleep(0.02)
        return saving, (await told(server, "/v1/runs"))["data"]


def judging(word):
    """Let the judge prefer that answer, wherever it stands; any other word is said as it is."""

    def say(request):
        text = request.messages[-1].text
        first = text.index(word) if word in text else -1
        place = "A" if 0 <= first < text.index("<B>") else "B"
        return reply(place if first >= 0 else word, usd="0.001")

    return ScriptedClient(say)


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("OURS", ShadowVerdict.BETTER),
        ("THEIRS", ShadowVerdict.WORSE),
        ("SAME: both", ShadowVerdict.SAME),
        ("Hm.", ShadowVerdict.UNJUDGED),
    ],
)
async def test_a_judge_compares_an_answer_with_the_best_single_worker_s(store, word, verdict):
    clients = {
        "small": ScriptedClient([reply("OURS")]),
        "big": ScriptedClient([reply("THEIRS", usd="0.01")]),
        "other": judging(word),
    }
    saving, runs = await compared(store, clients)
    assert saving.shadows == {**dict.fromkeys(ShadowVerdict, 0), verdict: 1}
    assert saving.shadow_usd == Decimal("0.011") and saving.usd == Decimal("0.0012")
    assert [run["shadow"] for run in runs] == [verdict], "it is no run of anybody's"
    spent = {
        one.group[0]: one.cost.usd for one in await report_spending(store.database, ("tenant",))
    }
    assert spent["(shadow)"] == Decimal("0.011") and spent["local"] == Decimal("0.0012")


@pytest.mark.parametrize(
    ("rules", "body"),
    [
        (SessionRules(), None),
        (SessionRules(shadow_share=1.0, shadow_usd_per_day=Decimal("0.0001")), None),
        (SHADOWED, {"store": False}),
        (SHADOWED, {"model": "worker/small"}),
    ],
)
async def test_nobody_is_asked_where_it_is_off_dear_unwanted_or_without_a_choice(
    store, rules, body
):
    clients = {
        "small": ScriptedClient([reply("OURS")]),
        "big": ScriptedClient([]),
        "other": ScriptedClient([]),
    }
    saving, _ = await compared(store, clients, rules, body, wanted=0)
    assert not sum(saving.shadows.values())
    assert not clients["big"].requests and not clients["other"].requests


async def test_no_tool_of_the_server_runs_for_a_comparison(store):
    clients = {
        "small": ScriptedClient([reply("OURS")]),
        "big": ScriptedClient([]),
        "other": ScriptedClient([]),
    }
    body = {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}
    async with HttpTransport() as http:
        setting = ToolsSetting(python=PythonSetting(server_tool=True))
        offered = open_served_tools(setting, http, {})
        saving, _ = await compared(store, clients, body=body, wanted=0, server_tools=offered)
    assert not sum(saving.shadows.values())
    assert clients["small"].requests and not clients["big"].requests


async def test_a_comparison_that_is_cut_off_is_paid_for(store):
    big = Halting()
    clients = {"small": ScriptedClient([reply("OURS")]), "big": big, "other": ScriptedClient([])}
    state = app_state(Escalate(), clients, workers=THREE, store=store, session_rules=SHADOWED)
    async with Serving(state) as server:
        asked = {"model": "batuta-ultra", "messages": HI}
        assert (await server.post(json=asked, headers={"x-session-id": "s"}))[0] == 200
        with anyio.fail_after(20):
            await big.started.wait()
    await store.flush()
    payers = {one.group[0] for one in await report_spending(store.database, ("tenant",))}
    assert "(shadow)" in payers


async def test_a_best_worker_that_fails_leaves_the_answer_unjudged(store):
    failing = ScriptedClient([ClientError("overloaded", status=529)] * 5)
    clients = {"small": ScriptedClient([reply("OURS")]), "big": failing, "other": judging("OURS")}
    saving, _ = await compared(store, clients)
    assert saving.shadows[ShadowVerdict.UNJUDGED] == 1 and not clients["other"].requests
