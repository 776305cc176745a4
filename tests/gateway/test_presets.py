"""Models of the settings' own, as they are read and served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.conductors.fixed_workflows import FixedConductor
from batuta.config.conductors import PATTERN_PREFIX, PATTERNS, open_patterns
from batuta.config.load import load_config
from batuta.core import Pool, Reply, Worker, WorkerId
from batuta.core.conductor import conductor_worker
from batuta.errors import ConfigError
from batuta.gateway import ServerState
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.assemble import ServeOptions
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.live_server import HI, Serving, stored

pytestmark = pytest.mark.anyio
WORKERS = "".join(
    f'[[workers]]\nid = "{name}"\nmodel = "m-{name}"\nbase_url = "http://127.0.0.1:9/v1"\n'
    f"strength = {strength}\nprice = {{ input = {price}, output = {price} }}\n"
    for name, strength, price in (
        ("ada", 0.9, 9),
        ("bob", 0.8, 3),
        ("cyd", 0.7, 1),
        ("dot", 0.1, 2),
    )
)
FLOW = 'model_id = ["bob", "ada"]\nsubtasks = ["Draft.", "Finish."]\naccess_list = [[], ["all"]]'
PRESETS = """
[models.team]
conductor = "fusion"
workers = ["ada", "cyd"]
limits = { max_cost_usd = 0.5, max_tokens = 5000 }
description = "Two heads."
[models.flow]
workflow = "flow.txt"
[models.deep]
conductor = "single/bob"
effort = "high"
[models.quick]
conductor = "vote"
effort = "minimal"
[models.three]
baseline = "self-consistency@5"
workers = ["cyd"]
[models.critic]
conductor = "critique"
"""


async def opened(folder, text=PRESETS, workers=WORKERS):
    """The settings as they were read, their workers scripted."""
    (folder / "flow.txt").write_text(FLOW)
    path = folder / "batuta.toml"
    path.write_text(text + workers)
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path), environ={})
    asked: list[tuple[str, str | None]] = []

    def client(name):
        def say(request):
            asked.append((name, request.sampling.effort))
            return Reply(text=f"{name} says 7.")

        return ScriptedClient(say)

    clients = {worker.id: client(worker.id) for worker in config.pool}
    options = ServeOptions(
        pool=None, conductor=None, history=None, cascade=None, checker=None, folders=()
    )
    own = tuple(one for one in config.presets if not one.name.startswith(PATTERN_PREFIX))
    presets = (*own, *open_patterns(config.pool, clients))
    return options.build_catalogue(replace(config, clients=clients, presets=presets)), asked


def workers_of(asked):
    return [name for name, _ in asked]


async def ask(server, model, **more):
    body = {"model": model, "messages": HI, **more}
    status, headers, answer = await server.post(json=body)
    assert status == 200, answer
    return headers, answer


async def test_a_preset_answers_in_every_dialect_and_is_listed(tmp_path, store: Store):
    catalogue, asked = await opened(tmp_path)
    async with Serving(ServerState(catalogue=catalogue, store=store)) as server:
        _, listed = await server.get("/v1/models")
        told = {each["id"]: each["description"] for each in listed["data"]}
        assert told["team"] == "Two heads."
        assert {"flow", "deep", "quick", "three", "critic"} <= told.keys()
        for path, body in (
            ("/v1/chat/completions", {"messages": HI}),
            ("/v1/messages", {"messages": HI, "max_tokens": 9}),
            ("/v1/responses", {"input": "hi"}),
        ):
            status, _, answer = await server.post(path, json={"model": "team", **body})
            assert (status, answer["model"]) == (200, "team"), answer
        # both answer, the best one compares, and writes
        assert sorted(workers_of(asked)[:2]) == ["ada", "cyd"]
        assert workers_of(asked)[2:4] == ["ada", "ada"] and len(asked) == 12
        assert {row.model for row in await stored(store, 3)} == {"team"}


async def test_what_each_kind_runs(tmp_path):
    catalogue, asked = await opened(tmp_path)
    async with Serving(ServerState(catalogue=catalogue)) as server:
        await ask(server, "flow")
        assert workers_of(asked) == ["bob", "ada"]
        asked.clear()
        await ask(server, "deep")
        assert asked == [("bob", "high")]
        asked.clear()
        await ask(server, "deep", reasoning_effort="low")  # a request's own goes before
        assert asked == [("bob", "low")]
        asked.clear()
        await ask(server, "three")
        assert set(workers_of(asked)) == {"cyd"} and len(asked) > 1
        asked.clear()
        await ask(server, "quick")  # of that effort one step, by the cheapest half
        assert set(workers_of(asked)) <= {"cyd", "dot"} and len(asked) == 1
        asked.clear()
        await ask(server, "critic")
        assert workers_of(asked) == ["ada", "bob", "ada"]


def unknown_workers(*further: str) -> str:
    """Two workers whose models no catalogue knows, and what the settings say of each."""
    return "".join(
        f'[[workers]]\nid = "{name}"\nmodel = "m-{name}"\nbase_url = "http://127.0.0.1:9/v1"\n{more}'
        for name, more in zip(("ada", "bob"), further, strict=True)
    )


DEAR, CHEAP = "price = { input = 9, output = 9 }\n", "price = { input = 1, output = 1 }\n"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
PRICELESS = "{} was compared at an assumed price: its [[workers]] has none"
TAGLESS = 'bob was not compared: its [[workers]] has no tag "tools"'


@pytest.mark.parametrize("pattern", ["escalate", "advise", "gate", "lead-and-hands"])
@pytest.mark.parametrize(
    ("workers", "acts", "notes"),
    [
        (("", ""), "ada", [PRICELESS.format("ada"), PRICELESS.format("bob")]),
        ((DEAR, ""), "ada", [PRICELESS.format("bob")]),
        ((DEAR, CHEAP), "bob", []),
        ((DEAR + 'tags = ["tools"]\n', CHEAP), "ada", [TAGLESS]),
    ],
)
@pytest.mark.parametrize("session", [False, True])
async def test_a_pattern_says_which_setting_keeps_a_worker_from_being_the_cheapest(
    tmp_path, store: Store, pattern, workers, acts, notes, session
):
    catalogue, asked = await opened(tmp_path, "", unknown_workers(*workers))
    if not session and notes == [TAGLESS]:
        acts, notes = "bob", []  # no tools are offered
    async with Serving(ServerState(catalogue=catalogue, store=store)) as server:
        await ask(server, f"pattern/{pattern}", **({"tools": TOOLS} if session else {}))
        [row] = await stored(store, 1)
        run = await store.get(row.id)
    assert run is not None and acts in workers_of(asked)
    assert run.rounds[0].steps[0].worker == acts
    assert run.rounds[0].decision.reason.split("; ")[1:][: len(notes)] == notes
    assert ("compared" in run.rounds[0].decision.reason) is bool(notes)


async def test_every_pattern_answers_by_its_name_without_a_line_of_settings(tmp_path):
    catalogue, asked = await opened(tmp_path, "")
    async with Serving(ServerState(catalogue=catalogue)) as server:
        _, listed = await server.get("/v1/models")
        told = {each["id"]: each["description"] for each in listed["data"]}
        assert {f"pattern/{name}" for name in PATTERNS} <= told.keys()
        assert told["pattern/gate"] == PATTERNS["gate"]
        for name in ("escalate", "advise"):
            await ask(server, f"pattern/{name}")
        assert workers_of(asked) == ["cyd", "cyd"]
        asked.clear()
        await ask(server, "pattern/lead-and-hands")
        assert workers_of(asked) == ["ada", "cyd", "ada"]  # a plan, the work, a review
        asked.clear()
        await ask(server, "pattern/gate", orchestration={"workers_deny": ["ada"]})
        assert workers_of(asked) == ["cyd", "bob"]
        assert "pattern/gate" in catalogue.known_names.models


async def test_over_one_worker_there_is_no_pattern(tmp_path):
    text = '[[workers]]\nid = "one"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    (tmp_path / "batuta.toml").write_text(text)
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(tmp_path / "batuta.toml"), environ={})
    assert config.presets == ()


async def test_a_request_tightens_limits_and_never_widens_them(tmp_path):
    catalogue, asked = await opened(tmp_path)
    async with Serving(ServerState(catalogue=catalogue)) as server:
        wide = {"max_cost_usd": 9, "max_tokens": 10**6, "trace": True}
        headers, answer = await ask(server, "team", orchestration=wide)
        limits = answer["orchestration"]["header"]["limits"]
        assert (float(limits["usd"]), limits["tokens"]) == (0.5, 5000)
        assert headers["x-batuta-lowered"] == "max_cost_usd=0.5, max_tokens=5000"
        body = {"model": "team", "messages": HI, "orchestration": {"workers_allow": ["bob"]}}
        status, _, refused = await server.post(json=body)
        assert status == 400 and "bob" in refused["error"]["message"]
        asked.clear()
        await ask(server, "team", orchestration={"workers_allow": ["cyd"]})
        assert set(workers_of(asked)) == {"cyd"}


async def test_a_key_is_allowed_a_preset_by_its_name(tmp_path, store: Store):
    catalogue, _ = await opened(tmp_path)
    assert "team" in catalogue.known_names.models
    hasher = KeyHasher(b"x" * 32)
    gate = Authenticator(store, hasher, "the-admins-own-token")
    app_state = ServerState(catalogue=catalogue, store=store, authenticator=gate)
    async with Serving(app_state) as server:
        permissions = KeyPermissions(models=("flow",), workers_deny=("cyd",))
        _, issued = await store.keys.create(hasher, "acme", "a key", permissions)
        headers = {"authorization": f"Bearer {issued.text}"}
        for model, wanted in (("flow", 200), ("team", 403)):
            status, _, _ = await server.post(json={"model": model, "messages": HI}, headers=headers)
            assert status == wanted
        _, listed = await server.get("/v1/models", headers=headers)
        assert [each["id"] for each in listed["data"]] == ["flow"]


WRONG = {
    '[models.x]\nconductor = "vote"\nworkflow = "a"': "models.x: name exactly one: a `conductor`",
    '[models.x]\ndescription = "d"': "models.x: name exactly one: a `conductor`",
    '[models.x]\nconductor = "votes"': "models.x: there is no conductor 'votes'",
    '[models.x]\nconductor = "vote"\nworkers = ["adda"]': "models.x: there is no worker 'adda'; did you",
    '[models.x]\nconductor = "single/bob"\nworkers = ["ada"]': "models.x: there is no conductor",
    '[models.x]\nworkflow = "gone.txt"': "gone.txt cannot be read",
    '[models.x]\nworkflow = "batuta.toml"': "models.x: ",
    '[models.x]\nworkflow = "flow.txt"\nworkers = ["ada"]': "models.x: model_id of step 0",
    '[models.x]\nworkflow = "flow.txt"\nlimits = { max_steps = 1 }': "2 steps where 1 are allowed",
    '[models.x]\nbaseline = "moaa"': "models.x: there is no baseline 'moaa'; did you mean moa?",
    '[models.x]\nbaseline = "knn"': "models.x: the baseline knn is not served: it learns from",
    '[models.x]\nbaseline = "moa"\neffort = "low"': "`effort` applies only to a conductor",
    '[models.x]\nbaseline = "moa"\nlimits = { max_steps = 2 }': "`max_steps` does not apply to a baseline",
    '[models.batuta-mini]\nconductor = "vote"': "models.batuta-mini: another model has that name",
    '[models."worker/ada"]\nconductor = "vote"': "models.worker/ada: another model has that name",
    '[models."pattern/gate"]\nconductor = "vote"': "models.pattern/gate: another model has that",
    '[models."a b"]\nconductor = "vote"': "models.a b: use 1 to 100 of: letters",
    '[limits]\nmax_cost_usd = 1\n[models.x]\nconductor = "vote"\nlimits = { max_cost_usd = 2 }':
        "models.x.limits.max_cost_usd must be at most 1, as in [limits]",
    '[limits]\nmax_tokens = 1234567\n[models.x]\nconductor = "vote"\nlimits = { max_tokens = 1234568 }':
        "models.x.limits.max_tokens must be at most 1234567, as in [limits]",
    '[aliases]\n"team" = "batuta-mini"\n[models.team]\nconductor = "vote"':
        "aliases.team: it is the name of team",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
async def test_a_wrong_preset_is_refused_by_one_sentence(text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        await opened(tmp_path, text + "\n")
    said = str(caught.value)
    assert WRONG[text] in said and "\n" not in said and len(said) < 500


async def test_a_worker_outside_may_conduct(tmp_path):
    text = '[models.x]\nconductor = "ada"\nworkers = ["bob", "cyd"]\n'
    catalogue, _ = await opened(tmp_path, text)
    served = catalogue.find_model("x")
    assert served is not None and served.conductor is not None
    drafts = conductor_worker(served.conductor)
    assert drafts is not None and drafts.id == "ada"
    assert [worker.id for worker in served.pool] == ["bob", "cyd"]


async def test_a_folder_named_like_a_pattern_takes_its_name_from_nothing(tmp_path, monkeypatch):
    (tmp_path / "fusion").mkdir()
    (tmp_path / "fusion" / "batuta.json").write_text('{"kind": "selector"}')
    monkeypatch.chdir(tmp_path)
    pool = Pool(tuple(Worker(id=WorkerId(name), model=name) for name in ("ada", "ben")))
    opened = {preset.name: preset.conductor for preset in open_patterns(pool, {})}
    assert isinstance(opened["pattern/fusion"], FixedConductor) and len(opened) == len(PATTERNS)
