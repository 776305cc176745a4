"""What somebody with real models gets: from keys and servers alone, and from a file."""

import socket
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from batuta.clients import HttpTransport
from batuta.clients.providers import PROVIDERS
from batuta.conductors import LLMConductor
from batuta.config.load import load_config
from batuta.core import Outcome, PlanningContext, Question
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.language import conductor_request
from fakes import FakeAnthropic, FakeOpenAI
from fakes.environ import NOWHERE, SILENT
from fakes.server import KEY

pytestmark = pytest.mark.anyio
FLOW = 'model_id = [0]\nsubtasks = ["Answer it."]\naccess_list = [[]]'


@pytest.fixture
async def http(anyio_backend):
    async with HttpTransport() as http:
        yield http


def listens(url):
    """Whether somebody listens at that address."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


@asynccontextmanager
async def serving(*models, tags=(), shown=None, reply=FLOW, **options):
    async with FakeOpenAI(reply, strict_openai=False, check=False, **options) as server:
        server.models, server.tags, server.shown = list(models), list(tags), shown or {}
        yield server


def prompt_of(ensemble):
    assert isinstance(ensemble.conductor, LLMConductor)
    context = PlanningContext(question=Question.of("q"), pool=ensemble.pool)
    learned = ensemble.conductor
    return conductor_request(context, learned.rendering, learned.sampling).messages[0].text


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(
    any(listens(one.base_url) for one in PROVIDERS.values() if one.local and one.base_url),
    reason="a server of models runs on this machine",
)
async def test_without_a_model_one_sentence_says_how_to_get_one(http, elsewhere):
    with pytest.raises(ConfigError, match="no model was found: set OPENAI_API_KEY") as caught:
        await load_config(http, environ=UNSET)
    assert "--pool rehearsal" in str(caught.value)
    assert (await load_config(http, environ=UNSET, rehearses=True)).simulated


UNSET = {}
"""Nothing is set: the ports of local servers are asked, and nobody listens on them here."""


async def test_keys_alone_give_described_workers_and_the_best_conducts(http, elsewhere):
    environ = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    found = await load_config(http, environ=environ)
    assert not found.simulated
    assert found.conductor.name == "prompted/anthropic/claude-opus-5-5"
    text = prompt_of(found)
    for said in (
        "Model id 0: gpt-6.1-sol. Its maker says: Model for complex coding",
        "Model id 2: gpt-6-luna. Its maker says: Efficient model",
        "can see pictures",
        "$4 in, $20 out per million tokens",
    ):
        assert said in text, text


async def test_a_key_gives_the_newest_models_that_its_provider_lists(http, elsewhere):
    async with FakeAnthropic("x") as server:
        server.models = [
            {"id": "claude-opus-4-5-20251101", "max_input_tokens": 200_000},
            {"id": "claude-opus-4-8", "max_input_tokens": 900_000},
            {"id": "claude-haiku-4-5-20251001"},
            {"id": "claude-fable-5"},
        ]
        environ = {"ANTHROPIC_API_KEY": server.key, "ANTHROPIC_BASE_URL": server.origin}
        found = await load_config(http, environ=environ)
    assert [(w.model, w.context_window) for w in found.pool] == [
        ("claude-opus-4-8", 900_000),
        ("claude-haiku-4-5-20251001", 200_000),
    ]
    assert all(worker.price for worker in found.pool)


async def test_a_model_with_a_board_s_figures_shows_them(http, elsewhere):
    text = "[[workers]]\nprovider = 'openai'\nmodel = 'gpt-5-mini'\nid = 'a'\n"
    (elsewhere / "batuta.toml").write_text(text)
    found = await load_config(http, environ={"OPENAI_API_KEY": KEY})
    assert "competition maths 88% (MathArena AIME 2025)" in prompt_of(found)


async def test_a_base_url_alone_is_asked_for_its_models(http, elsewhere):
    async with serving({"id": "qwen3:8b"}, {"id": "llama-3.1-70b-instruct"}) as server:
        environ = {"OPENAI_API_KEY": server.key, "OPENAI_BASE_URL": server.url}
        found = await load_config(http, environ=environ)
    assert [w.model for w in found.pool] == ["qwen3:8b", "llama-3.1-70b-instruct"]
    assert found.conductor.name == "prompted/compatible/llama-3.1-70b-instruct", "the larger one"
    assert "70 billion parameters" in prompt_of(found)


async def test_a_base_url_that_does_not_answer_is_named_and_nothing_is_simulated(http, elsewhere):
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": SILENT}
    with pytest.raises(ConfigError, match="no server answers at OPENAI_BASE_URL"):
        await load_config(http, environ=environ, rehearses=True)


async def test_ollama_tells_sizes_windows_and_abilities(http, elsewhere):
    shown = {
        "small:1b": {"capabilities": ["completion"], "model_info": {"x.context_length": 2048}},
        "big:32b": {"capabilities": ["completion", "tools", "vision"],
                    "model_info": {"qwen3.context_length": 40960}},
        "nomic": {"capabilities": ["embedding"]},
    }  # fmt: skip
    async with serving(tags=["small:1b", "nomic", "big:32b"], shown=shown) as server:
        found = await load_config(http, environ=NOWHERE | {"OLLAMA_HOST": server.host})
    assert [w.id for w in found.pool] == ["ollama/small:1b", "ollama/big:32b"]
    assert found.conductor.name == "prompted/ollama/big:32b", "not the first one listed"
    text = prompt_of(found)
    assert (
        "Model id 1: big:32b. 32 billion parameters.\n  can call tools; can see pictures; " in text
    )
    assert "reads up to 40,960 tokens; costs nothing" in text


async def test_vllm_tells_its_window(http, elsewhere):
    row = {"id": "Qwen/Qwen3-32B", "owned_by": "vllm", "max_model_len": 32768}
    async with serving(row) as server:
        found = await load_config(http, environ=NOWHERE | {"VLLM_BASE_URL": server.url})
    assert "Qwen/Qwen3-32B. 32 billion parameters." in prompt_of(found)
    assert "code editing 46% (Aider polyglot, spring 2025)" in prompt_of(found)
    learned = found.conductor
    assert learned.sampling.effort == "low" and learned.sampling.max_tokens == 8192  # pyright: ignore[reportAttributeAccessIssue]


OPENROUTER = """
[[workers]]
id = "w{n}"
provider = "openrouter"
model = "{model}"
base_url = "{url}"
"""
DOZEN = (
    "openai/gpt-5.2", "openai/gpt-5-mini", "openai/gpt-oss-120b", "anthropic/claude-opus-4.5",
    "anthropic/claude-sonnet-4.5", "google/gemini-2.5-pro", "google/gemini-2.5-flash",
    "deepseek/deepseek-r1", "qwen/qwen3-32b", "openai/o3", "z-ai/glm-4.6", "openai/gpt-4o-mini",
)  # fmt: skip


async def test_a_dozen_openrouter_models_have_prices_and_priors(http, elsewhere):
    async with serving() as server:
        rows = [OPENROUTER.format(n=n, model=m, url=server.url) for n, m in enumerate(DOZEN)]
        (elsewhere / "batuta.toml").write_text("".join(rows))
        found = await load_config(http, environ={"OPENROUTER_API_KEY": server.key})
    assert all(worker.price for worker in found.pool)
    assert sum(bool(worker.tags) for worker in found.pool) == 11, "all but R1"
    assert sum(bool(worker.skills) for worker in found.pool) >= 9
    best = found.pool.ranked()[0]
    assert best.model == "anthropic/claude-opus-4.5" and best.id in found.conductor.name
    assert "Model id 8: qwen/qwen3-32b" in prompt_of(found)


APART = """
[[workers]]
id = "a"
model = "m-a"
base_url = "{workers}"

[[workers]]
id = "b"
model = "m-b"
base_url = "{workers}"
skills = {{ maths = 0.7, code = {{ share = 0.41, questions = 96 }} }}
seconds = 4

[conductor]
provider = "vllm"
base_url = "{conductor}"
model = "planner"
price = {{ input = 1, output = 2 }}
"""


async def test_a_conductor_apart_is_called_and_is_no_worker(http, elsewhere):
    async with serving() as planner, serving(reply="The answer.") as workers:
        text = APART.format(workers=workers.url, conductor=planner.url)
        (elsewhere / "batuta.toml").write_text(text)
        found = await load_config(http, environ={})
        assert "planner" not in {str(worker.id) for worker in found.pool}
        run = await conduct(Question.of("q"), found.conductor, found.pool, found.clients)
    assert (run.outcome, run.answer) == (Outcome.ANSWERED, "The answer.")
    (asked,) = planner.requests
    assert asked.body["model"] == "planner" and asked.body["max_tokens"] == 1024
    shown = asked.body["messages"][0]["content"]
    assert "Model id 1: m-b\n  right alone: maths 70%; code 41% of 96\n  takes about 4 s" in shown
    assert run.rounds[0].decision.draft.cost.usd > 0


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[conductor]\nworker = 'a'\nmodel = 'm'", "conductor: there are two conductors"),
        ("[conductor]\nprovider = 'vllm'", "conductor: a conductor that is not a worker needs"),
        ("[conductor]\nprovider = 'zzz'\nmodel = 'm'", "there is no provider 'zzz'"),
        ("[conductor]\nprovider = 'openai'\nmodel = 'm'", "set OPENAI_API_KEY"),
        ("[conductor]\nworker = 'zoe'", "no conductor 'zoe'"),
        ("[mini]\nselector = 'x'\nconductor = 'a'", "mini: name a `conductor` or a `selector`"),
        ("[mini]\nselector = 'runs/nowhere'", "no conductor 'runs/nowhere'"),
        ("[conductor]\nmodel = 'm'\nbase_url = 'http://h/v1'\ncard = 'nowhere'", "batuta.json"),
    ],
)
async def test_settings_that_cannot_be_used_get_one_sentence(http, elsewhere, toml, said):
    worker = f"[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = '{SILENT}'\n"
    (elsewhere / "batuta.toml").write_text(worker + toml)
    with pytest.raises(ConfigError) as caught:
        await load_config(http, environ={})
    assert said in str(caught.value) and "\n" not in str(caught.value)


async def test_a_conductor_named_on_one_line_works(http, elsewhere):
    worker = f"conductor = 'vote'\nmini = 'best'\n[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = '{SILENT}'\n"
    (elsewhere / "batuta.toml").write_text(worker)
    found = await load_config(http, environ={})
    assert found.conductor.name.startswith("vote") and found.mini is not None


async def test_a_key_that_is_refused_is_said_in_one_sentence(http, elsewhere):
    async with FakeAnthropic("x") as server:
        environ = {"ANTHROPIC_API_KEY": "sk-ant-wrong", "ANTHROPIC_BASE_URL": server.origin}
        found = await load_config(http, environ=environ, conductor="best")
        run = await conduct(Question.of("q"), found.conductor, found.pool, found.clients)
    assert run.outcome is Outcome.FAILED and "\n" not in (run.error or "")
    assert "sk-ant-wrong" not in str(run)


def test_folders_are_looked_for_beside_the_file(tmp_path):
    from batuta.config.settings import Settings
    from batuta.config.settings_file import read_settings
    from batuta.lab.worlds import shipped_policy_folder

    (tmp_path / "mine").symlink_to(shipped_policy_folder())
    (tmp_path / "batuta.toml").write_text("conductor = 'mine'\n[ultra]\nconductor = 'vote'")
    read = read_settings(tmp_path / "batuta.toml", Settings).resolve_folders(tmp_path)
    assert Path(read.conductor.worker or "") == tmp_path / "mine" and read.ultra.name == "vote"


async def test_a_worker_that_runs_code_needs_no_model_and_never_answers_alone(http, elsewhere):
    python = "[[workers]]\nid = 'py'\nprovider = 'python'\n"
    worker = f"[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = '{SILENT}'\n"
    (elsewhere / "batuta.toml").write_text(python + worker)
    found = await load_config(http, environ={})
    assert [str(w.id) for w in found.pool.ranked()] == ["a"]
    text = prompt_of(found)
    assert "Model id 0: python. No language model: runs the last Python code block" in text
    assert "can run Python code; costs nothing" in text
    assert 'model_id = [1, 0, 1]\nsubtasks = ["Write a short Python program' in text
    (elsewhere / "batuta.toml").write_text(python)
    with pytest.raises(ConfigError, match="has no language model"):
        await load_config(http, environ={})
