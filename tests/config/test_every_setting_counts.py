"""Every setting changes something that can be seen, or is refused: none is left out silently."""

import ast
import json
import re
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

import batuta
from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.config.settings import (
    AnswerCacheSetting,
    ApprovalSetting,
    ConductorSetting,
    ModerationSetting,
    OidcSetting,
    PlanRuleSetting,
    PresetLimits,
    PresetSetting,
    ResilienceSetting,
    ServerSetting,
    Settings,
    WebhookSetting,
)
from batuta.config.tool_settings import (
    FileSearchSetting,
    McpSetting,
    PythonSetting,
    ReaderSetting,
    SearchSetting,
)
from batuta.config.trust_settings import AuditSetting, ConfidenceSetting
from batuta.config.worker_settings import DeploymentSetting, WorkerSetting
from batuta.embedded.policy import ConductorCard
from batuta.errors import ConfigError
from batuta.gateway.assemble import ServeOptions, startup_message
from batuta.guardrails.settings import GuardrailSetting
from batuta.language import PromptOptions
from encoder.test_sentence_encoder import INSTALLED

pytestmark = pytest.mark.anyio
SOURCE = Path(batuta.__file__).parent
URL = "http://127.0.0.1:9/v1"
KEYS = {"ANTHROPIC_API_KEY": "sk-ant-0123456789", "MY_KEY": "sk-mine", "OTHER_KEY": "sk-other"}
A = {"id": "a", "model": "m-a", "base_url": URL, "price": {"input": 1, "output": 2}}
B = {"id": "b", "model": "claude-sonnet-4-5", "provider": "anthropic"}
PLACE = {"base_url": "http://127.0.0.1:8/v1"}
APART = {"model": "c", "base_url": URL}
PRICE = {"input": 1, "output": 2}

SESSIONS = {
    "conduct_auxiliary": True,
    "tools": {"get_lock": "change"},
    "worth_usd": 2,
    "shadow_share": 0.5,
    "shadow_usd_per_day": 3,
    "margin_usd": 0.5,
    "warm_s": 60,
    "failures": 3,
    "stall_actions": 9,
    "consultations": 1,
    "max_cost_usd": 4,
    "max_turns": 30,
}

# Of each setting a value that is not the usual one; beside what else it needs.
WORKER = {
    "id": "z",
    "model": "other",
    "provider": "vllm",
    "base_url": "http://127.0.0.1:7/v1",
    "key_env": "MY_KEY",
    "description": "Good.",
    "tags": ["vision"],
    "context_window": 1000,
    "price": {"input": 5, "output": 6},
    "enabled": False,
    "strength": 0.5,
    "skills": {"maths": 0.5},
    "seconds": 3,
    "sampling": {"temperature": 0.5},
    "concurrency": 3,
    "rpm": 10,
    "tpm": 1000,
    "extra_body": {"x": 1},
    "adapt": ["one_system_message"],
    "field_names": {"max_tokens": "max_completion_tokens"},
    "native_tools": ["web_search"],
    "openai_api": "responses",
    "think_tags": "tagged",
    "weight": 2,
    "deployments": [PLACE],
}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 50,
    "stop": ["x"],
    "seed": 3,
    "effort": "low",
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "top_k": 5,
}
DEPLOYMENT = {
    "model": "elsewhere",
    "provider": "vllm",
    "base_url": "http://127.0.0.1:6/v1",
    "key_env": "OTHER_KEY",
    "weight": 3,
    "concurrency": 4,
    "rpm": 5,
    "tpm": 600,
}
OF_DRAFTS = ("temperature", "max_tokens", "effort", "breaker_questions", "breaker_pause_s")
CONDUCTOR = {
    "worker": "a",
    "model": "other",
    "provider": "vllm",
    "base_url": "http://127.0.0.1:7/v1",
    "key_env": "MY_KEY",
    "price": PRICE,
    "context_window": 1000,
    "tags": ["region:eu"],
    "concurrency": 3,
    "rpm": 10,
    "tpm": 1000,
    "extra_body": {"x": 1},
    "card": "{card}",
    "descriptions": False,
    "prices": False,
    "examples": False,
    "prompt": "brief",
    "structured": False,
    "temperature": 0.5,
    "max_tokens": 100,
    "effort": "high",
    "breaker_questions": 7,
    "breaker_pause_s": 7,
}
LIMITS = {
    "max_steps": 2,
    "max_rounds": 2,
    "max_tokens": 100,
    "max_cost_usd": 0.5,
    "deadline_s": 7,
    "unknown_price": {"input": 1, "output": 1},
}
PRESET_LIMITS = {name: value for name, value in LIMITS.items() if name != "unknown_price"}
PRESET = {
    "conductor": "vote",
    "workflow": "flow.txt",
    "baseline": "moa",
    "workers": ["a"],
    "limits": {"max_steps": 2},
    "effort": "low",
    "description": "Mine.",
}
RESILIENCE = {
    "step_timeout_s": 9,
    "hedge_s": 2,
    "breaker_failures": 2,
    "breaker_pause_s": 3,
}
POLICY = {
    "name": "other",
    "kind": "injection",
    "on": ["output"],
    "action": "block",
    "fail_closed": False,
}
PLAN_RULE_KINDS = {
    "max_parallel": 2,
    "no_self_check": True,
    "needs_check": True,
    "forbid_workers": ["b"],
}
PLAN_RULE = {
    "name": "other",
    "when": {"tenant": "acme", "tag": "patient"},
    "says": "Not so.",
    **PLAN_RULE_KINDS,
}
SEARCHING = {"engine": "searxng", "base_url": URL}
READING = {}
SEARCH = {
    "engine": "brave",
    "base_url": "http://127.0.0.1:5",
    "key_env": "OTHER_KEY",
    "price": 0.5,
    "results": 3,
    "timeout_s": 3,
    "allow_domains": ["a.org"],
    "deny_domains": ["b.org"],
    "server_tool": True,
    "max_uses": 7,
}
READER = {
    "allow_domains": ["a.org"],
    "deny_domains": ["b.org"],
    "private_hosts": ["wiki:80"],
    "max_bytes": 5000,
    "max_characters": 900,
    "timeout_s": 3,
    "server_tool": True,
    "max_uses": 7,
}
FILE_SEARCH = {
    "server_tool": True,
    "max_uses": 7,
    "folder": "/",
    "results": 3,
    "timeout_s": 3,
    **({"vectors": True} if INSTALLED else {}),
}
PROGRAMS = {
    "server_tool": True,
    "max_uses": 7,
    "timeout_s": 3,
    "memory_mb": 100,
    "max_characters": 900,
    "interpreter": "/usr/bin/python3",
}
MCP_TOOL = {"tool": "find", "command": ["finder"]}
MCP = {
    "tool": "other",
    "argument": "text",
    "command": ["other", "x"],
    "url": "https://tools.example.org/mcp",
    "price": 0.1,
    "timeout_s": 3,
    "max_characters": 900,
}
APPROVAL = {"name": "s", "when": {"above_usd": 1, "workers": ["a"]}, "expires_s": 5}
READ_BY_THE_SERVER = (
    AuditSetting,
    ConfidenceSetting,
    ServerSetting,
    AnswerCacheSetting,
    OidcSetting,
    ModerationSetting,
    WebhookSetting,
)
"""Tables whose settings go one by one to the parts of a server: each must be read somewhere."""


def with_setting(**tables):
    return {"workers": [A, B], **tables}


def single_cases():
    """A name, the file without the setting, and with it."""
    for name, value in WORKER.items():
        places = {"deployments": [PLACE]} if name == "weight" else {}
        places |= {"openai_api": "responses"} if name == "native_tools" else {}
        yield (
            f"workers.{name}",
            with_setting(workers=[A | places, B]),
            with_setting(workers=[A | places | {name: value}, B]),
        )
    for name, value in SAMPLING.items():
        yield (
            f"sampling.{name}",
            with_setting(),
            with_setting(workers=[A | {"sampling": {name: value}}, B]),
        )
    for name, value in DEPLOYMENT.items():
        yield (
            f"deployments.{name}",
            with_setting(workers=[A | {"deployments": [PLACE]}, B]),
            (with_setting(workers=[A | {"deployments": [PLACE | {name: value}]}, B])),
        )
    for name, value in CONDUCTOR.items():
        base = {} if name == "worker" else APART
        yield (
            f"conductor.{name}",
            with_setting(conductor=base),
            with_setting(conductor=base | {name: value}),
        )
    for table, values in (("limits", LIMITS), ("resilience", RESILIENCE)):
        for name, value in values.items():
            yield f"{table}.{name}", with_setting(), with_setting(**{table: {name: value}})
    secrets = {"name": "p", "kind": "secrets", "on": ["input"]}
    for name, value in POLICY.items():
        yield (
            f"policies.{name}",
            with_setting(policies=[secrets]),
            with_setting(policies=[secrets | {name: value}]),
        )
    for kind, name, usual, other in (
        ("size", "max_characters", 10, 20),
        ("schema", "json_schema", {"type": "object"}, {"type": "array"}),
        ("personal", "countries", [], ["DE"]),
    ):
        policy = secrets | {"kind": kind, name: usual}
        yield (
            f"policies.{name}",
            with_setting(policies=[policy]),
            with_setting(policies=[policy | {name: other}]),
        )
    grounded = {"name": "p", "kind": "grounded", "on": ["output"], "action": "mark", "worker": "a"}
    yield (
        "policies.worker",
        with_setting(policies=[grounded]),
        with_setting(policies=[grounded | {"worker": "b"}]),
    )
    rule = {"name": "r", "needs_check": True}
    for name, value in PLAN_RULE.items():
        kind = {"needs_check": False} if name in PLAN_RULE_KINDS else {}
        usual = {"no_self_check": True, "needs_check": False} if name == "needs_check" else {}
        other = {"no_self_check": False} if name == "needs_check" else kind
        yield (
            f"plan_rules.{name}",
            with_setting(plan_rules=[rule | usual]),
            with_setting(plan_rules=[rule | other | {name: value}]),
        )
    for name, value in APPROVAL.items():
        before = [{"name": "r", "when": {"tag": "x"}}]
        after = [before[0] | {name: value}]
        yield f"approvals.{name}", with_setting(approvals=before), with_setting(approvals=after)
    explore = {"share": 0.1, "usd_per_day": 1}
    yield "mini.explore", with_setting(), with_setting(mini={"explore": explore})
    for name, value in PRESET.items():
        kind = {} if name in {"conductor", "workflow", "baseline"} else {"conductor": "vote"}
        made = {"conductor": "best"} if name in {"conductor", "workflow", "baseline"} else kind
        yield (
            f"models.{name}",
            with_setting(models={"x": made}),
            with_setting(models={"x": kind | {name: value}}),
        )
    sure = {"confidence": {"file": "confidence.json"}}
    surer = {"x": {"conductor": "vote", "min_confidence": 0.9}}
    yield (
        "models.min_confidence",
        with_setting(models={"x": {"conductor": "vote"}}, **sure),
        with_setting(models=surer, **sure),
    )
    for name, value in PRESET_LIMITS.items():
        limited = {"conductor": "vote", "limits": {name: value}}
        yield (
            f"models.limits.{name}",
            with_setting(models={"x": {"conductor": "vote"}}),
            with_setting(models={"x": limited}),
        )
    for name, value in SESSIONS.items():
        yield f"sessions.{name}", with_setting(), with_setting(sessions={name: value})
    for table, usual, values in (("search", SEARCHING, SEARCH), ("reader", READING, READER)):
        workers = [A, B, {"id": "t", "provider": table}]
        for name, value in values.items():
            keyed = (
                {"engine": "brave", "key_env": "MY_KEY"} if name in {"engine", "key_env"} else {}
            )
            keyed |= {"server_tool": True} if name == "max_uses" else {}
            before = usual | (keyed if name in {"key_env", "max_uses"} else {})
            after = usual | keyed | {name: value}
            yield (
                f"tools.{table}.{name}",
                with_setting(workers=workers, tools={table: before}),
                with_setting(workers=workers, tools={table: after}),
            )
    for table, values in (("python", PROGRAMS), ("files", FILE_SEARCH)):
        for name, value in values.items():
            served = {"server_tool": True}
            yield (
                f"tools.{table}.{name}",
                with_setting(tools={table: served}) if name != "server_tool" else with_setting(),
                with_setting(tools={table: served | {name: value}}),
            )
    workers = [A, B, {"id": "t", "provider": "mcp", "model": "x"}]
    for name, value in MCP.items():
        usual = {"tool": "find"} if name == "url" else MCP_TOOL
        yield (
            f"tools.mcp.{name}",
            with_setting(workers=workers, tools={"mcp": {"x": MCP_TOOL}}),
            with_setting(workers=workers, tools={"mcp": {"x": usual | {name: value}}}),
        )
    yield "aliases", with_setting(), with_setting(aliases={"big-model": "batuta-mini"})
    for name in ("mini", "ultra"):
        for key in ("conductor", "selector"):
            yield f"{name}.{key}", with_setting(), with_setting(**{name: {key: "vote"}})


SINGLE = {name: (without, with_it) for name, without, with_it in single_cases()}


def test_every_setting_has_a_case():
    tables = {
        "workers": WorkerSetting,
        "conductor": ConductorSetting,
        "resilience": ResilienceSetting,
        "policies": GuardrailSetting,
        "plan_rules": PlanRuleSetting,
        "approvals": ApprovalSetting,
        **{
            name: Settings.model_fields[name].annotation
            for name in ("limits", "mini", "ultra", "sessions")
        },
        "sampling": WorkerSetting.model_fields["sampling"].annotation,
        "deployments": DeploymentSetting,
        "models": PresetSetting,
        "models.limits": PresetLimits,
        "tools.search": SearchSetting,
        "tools.reader": ReaderSetting,
        "tools.python": PythonSetting,
        "tools.files": FileSearchSetting,
        "tools.mcp": McpSetting,
    }
    wanted = {f"{table}.{name}" for table, model in tables.items() for name in model.model_fields}
    wanted -= set() if INSTALLED else {"tools.files.vectors"}
    assert set(SINGLE) == wanted | {"aliases"}
    elsewhere = {
        "approval_webhook",
        "audit",
        "files",
        "confidence",
        "server",
        "answer_cache",
        "oidc",
        "moderation",
        "baselines",
    }
    assert set(Settings.model_fields) == (
        (
            tables.keys()
            - {
                "sampling",
                "deployments",
                "models.limits",
                "tools.search",
                "tools.reader",
                "tools.python",
                "tools.files",
                "tools.mcp",
            }
        )
        | elsewhere
        | {"aliases", "tools"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
async def test_a_setting_alone_changes_something(name, tmp_path, monkeypatch):
    without, with_it = SINGLE[name]
    before = await observe_once(without, tmp_path, monkeypatch)
    assert await observe(with_it, tmp_path, monkeypatch) != before


PYTHON = {"id": "py", "provider": "python"}
FINDER = {"id": "find", "provider": "search"}
CARD = APART | {"card": "{card}"}
CONTEXTS = {
    "a worker that runs code": (lambda extra: with_setting(workers=[A, PYTHON | extra]), WORKER),
    "a worker that searches": (
        lambda extra: with_setting(workers=[A, FINDER | extra], tools={"search": SEARCHING}), WORKER,
    ),
    "a search that nobody uses": (
        lambda extra: with_setting(**({"tools": {"search": SEARCHING | extra}} if extra else {})),
        {"results": 3},
    ),
    "a search that no client can ask for": (
        lambda extra: with_setting(workers=[A, FINDER], tools={"search": SEARCHING | extra}),
        {"max_uses": 7},
    ),
    "an engine without a key": (
        lambda extra: with_setting(workers=[A, FINDER], tools={"search": SEARCHING | extra}),
        {"key_env": "MY_KEY"},
    ),
    "a worker of one place": (lambda extra: with_setting(workers=[A | extra, B]), WORKER),
    "a thinking model": (
        lambda extra: with_setting(workers=[A, B | {"sampling": {"effort": "low"} | extra}]),
        SAMPLING | {"effort": "high"},
    ),
    "a model that refuses sampling": (
        lambda extra: with_setting(
            workers=[A, {"id": "o", "model": "gpt-5.2", "provider": "openai", "base_url": URL}
                     | {"key_env": "MY_KEY", "sampling": extra}]
        ),
        SAMPLING,
    ),
    "a fixed conductor": (
        lambda extra: with_setting(conductor={"worker": "vote"} | extra),
        CONDUCTOR | {"worker": "plan-solve-verify"},
    ),
    "a worker that conducts": (
        lambda extra: with_setting(conductor={"worker": "a"} | extra),
        CONDUCTOR | {"worker": "b"},
    ),
    "a trained conductor": (lambda extra: with_setting(conductor=CARD | extra), CONDUCTOR | {"card": ""}),
    "another conductor of ultra": (
        lambda extra: with_setting(conductor=extra, ultra="vote"),
        CONDUCTOR | {"model": "c"},
    ),
    "two conductors, one trained": (
        lambda extra: with_setting(conductor=CARD | extra, ultra="a"),
        {name: CONDUCTOR[name] for name in OF_DRAFTS},
    ),
    "answers that are not given again": (
        lambda extra: with_setting(answer_cache=extra),
        {"ttl_s": 5, "sampled": True, "redis": True, "similarity": 0.9},
    ),
    "a policy of another kind": (
        lambda extra: with_setting(
            policies=[{"name": "p", "kind": "secrets", "on": ["input"]} | extra]
        ),
        {"max_characters": 5, "countries": ["DE"], "json_schema": {"type": "object"}},
    ),
    "a step that ends before": (
        lambda extra: with_setting(resilience={"step_timeout_s": 5} | extra), {"hedge_s": 5},
    ),
    "few connections": (
        lambda extra: with_setting(server={"connections": 5} | extra),
        {"connections_per_address": 6},
    ),
    "baselines without answers": (
        lambda extra: with_setting(baselines=extra), {"checker": "a"},
    ),
}  # fmt: skip
"""Where some settings mean nothing: how the file is made, and which settings of it are tried."""
CASES = [(context, name) for context, (_, values) in CONTEXTS.items() for name in values]


@pytest.mark.slow
@pytest.mark.parametrize(("context", "name"), CASES)
async def test_beside_others_it_still_does_or_is_refused(context, name, tmp_path, monkeypatch):
    build, values = CONTEXTS[context]
    before = await observe_once(build({}), tmp_path, monkeypatch)
    try:
        after = await observe(build({name: values[name]}), tmp_path, monkeypatch)
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message and len(message) < 400
        return
    assert after != before, f"{name} is left out silently"


@pytest.mark.parametrize("model", READ_BY_THE_SERVER)
def test_what_a_server_is_told_is_read(model):
    read = set()
    for path in (SOURCE / "gateway" / "assemble.py", *(SOURCE / "config").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(model.model_fields) <= read
    assert issubclass(model, BaseModel)


RULES = """
[[policies]]
name = "no-keys"
kind = "secrets"
on = ["input"]
action = "block"

[limits]
max_cost_usd = 1
"""


@pytest.mark.parametrize("pool", ["rehearsal", "rehearsal:shifted", "discover"])
@pytest.mark.parametrize(
    ("named", "text", "told"),
    [
        (None, RULES, "[policies] and [limits] of batuta.toml do not hold here"),
        ("other.toml", RULES, "[policies] and [limits] of other.toml do not hold here"),
        (None, '[server]\nkeys = "off"\n', None),
        (None, "[[policies", None),
        ("gone.toml", "", None),
    ],
)
async def test_rules_that_a_pool_leaves_unread_are_told(
    pool, named, text, told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if named != "gone.toml":
        (tmp_path / (named or "batuta.toml")).write_text(text, encoding="utf-8")
    environ = {"OPENAI_API_KEY": "sk-x"} | ({"BATUTA_CONFIG": named} if named else {})
    async with HttpTransport() as http:
        config = await load_config(http, pool=pool, environ=environ)
    assert config.notes == ((f"{pool} is a pool without settings: {told}",) if told else ())


async def test_two_conductors_are_told(tmp_path, monkeypatch):
    file = with_setting(conductor=APART, ultra="a")
    config, catalogue = await load(file, tmp_path, monkeypatch)
    note = "[ultra] overrides [conductor]: a conducts batuta-ultra, not c"
    assert config.notes == (note,) and config.conductor.name == "prompted/a"
    assert note in startup_message(config, catalogue, "http://h").splitlines()


async def test_dollars_and_tokens_bind_every_served_model(tmp_path, monkeypatch):
    file = with_setting(limits={"max_cost_usd": 0.5, "max_tokens": 100, "deadline_s": 7})
    _, catalogue = await load(file, tmp_path, monkeypatch)
    assert {(m.limits.usd, m.limits.tokens, m.limits.seconds) for m in catalogue.models} == {
        (0.5, 100, 7)
    }


async def test_a_key_goes_to_its_own_provider_alone(tmp_path, monkeypatch):
    place = {"base_url": "http://127.0.0.1:8/v1", "provider": "compatible"}
    seen = await observe(
        with_setting(workers=[A, B | {"deployments": [place]}]), tmp_path, monkeypatch
    )
    assert seen.count(KEYS["ANTHROPIC_API_KEY"]) == await count_keys(tmp_path, monkeypatch)


async def count_keys(tmp_path, monkeypatch):
    seen = await observe(with_setting(), tmp_path, monkeypatch)
    return seen.count(KEYS["ANTHROPIC_API_KEY"])


async def load(file, folder, monkeypatch):
    """What the settings become, and what is served of it."""
    monkeypatch.chdir(folder)
    (folder / "card").mkdir(exist_ok=True)
    ConductorCard(name="mine", rendering=PromptOptions()).write(folder / "card")
    flow = 'model_id = ["a"]\nsubtasks = ["x"]\naccess_list = [[]]'
    (folder / "flow.txt").write_text(flow)
    (folder / "confidence.json").write_text('{"conductors": {}}')
    path = folder / "batuta.toml"
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in file.items()))
    options = ServeOptions(
        pool=str(path), conductor=None, history=None, cascade=None, checker=None, folders=()
    )
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path), environ=KEYS)
        return config, options.build_catalogue(config)


BEFORE: dict[str, str] = {}
"""What was seen of files that several tests begin with."""


async def observe_once(file, folder, monkeypatch):
    key = json.dumps(file)
    if key not in BEFORE:
        BEFORE[key] = await observe(file, folder, monkeypatch)
    return BEFORE[key]


async def test_what_is_seen_is_the_same_twice(tmp_path, monkeypatch):
    first = await observe(with_setting(conductor=APART), tmp_path, monkeypatch)
    assert first == await observe(with_setting(conductor=APART), tmp_path, monkeypatch)


async def observe(file, folder, monkeypatch):
    """All values that are reached from what is served, as text, but for the settings themselves."""
    config, catalogue = await load(file, folder, monkeypatch)
    return describe(
        (config.conductor, config.mini, config.clients, config.pool, config.limits, config.notes,
         config.health, config.timeouts, config.guardrails, config.plan_rules, config.approvals, config.max_rounds, config.checker, config.explore,
         catalogue.models, catalogue.aliases, catalogue.server_tools, catalogue.conducts_auxiliary, catalogue.session_rules),
        set(),
    )  # fmt: skip


def describe(value, seen):  # noqa: PLR0911 - a case for each kind of value
    if isinstance(value, str | int | float | bool | type(None)):
        return repr(value)
    if hasattr(value, "reveal"):
        return value.reveal()
    if isinstance(value, anyio.Semaphore):
        return f"Semaphore({value.value})"
    if id(value) in seen or isinstance(value, HttpTransport):
        return "…"
    seen = seen | {id(value)}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v, seen)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(describe(each, seen) for each in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(describe(each, seen) for each in value)) + "}"
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    names = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ())]
    held = {n: getattr(value, n) for n in names if hasattr(value, n)} | getattr(
        value, "__dict__", {}
    )
    if type(value).__module__.startswith(("batuta", "functools")) or cells:
        inner = describe([held, cells, list(getattr(value, "args", ()))], seen)
        return f"{type(value).__name__}({inner})"
    return re.sub(r"0x[0-9a-f]+", "", repr(value))


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps("card" if value == "{card}" else value)
