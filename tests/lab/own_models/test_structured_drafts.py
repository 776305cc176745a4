"""A conductor held to the form of a workflow by its provider, in each dialect; one that refuses."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import HttpTransport, ScriptedClient
from batuta.config.load import load_config
from batuta.core import (
    AcceptedAnswer,
    MalformedPlan,
    Outcome,
    Pool,
    Question,
    Step,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import conduct
from batuta.errors import WorkflowError
from batuta.language import parse_workflow
from batuta.language.draft_schema import DRAFT_FORM, draft_format
from batuta.language.prompt import PREFILL
from batuta.schemas import JsonValidator
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.server import KEY, RuleError

pytestmark = pytest.mark.anyio
QUESTION = Question.of("How many?")
STEPS = {
    "thoughts": "Two steps; model_id = [1, 2] would be wrong.",
    "steps": [
        {"model_id": "1", "subtask": "Solve it.", "access_list": []},
        {"model_id": "0", "subtask": "Check it.", "access_list": ["0"]},
    ],
}
LISTS = 'model_id = [1, 0]\nsubtasks = ["Solve it.", "Check it."]\naccess_list = [[], [0]]'
POOL = Pool((Worker(id=WorkerId("a"), model="m-a"), Worker(id=WorkerId("b"), model="m-b")))
FLOW = Workflow(
    (
        Step(subtask="Solve it.", worker=WorkerId("b")),
        Step(subtask="Check it.", worker=WorkerId("a"), access=(0,)),
    )
)
FILE = """\
[[workers]]
id = "a"
model = "m-a"
base_url = "http://127.0.0.1:9/v1"
[[workers]]
id = "b"
model = "m-b"
base_url = "http://127.0.0.1:9/v1"
[conductor]
provider = "{provider}"
model = "{model}"
base_url = "{url}"
structured = {structured}
"""
CHAT = ("openai", "vllm", "llamacpp", "openrouter", "ollama")


@dataclass
class Dialect:
    fake: type
    model: str = "planner"
    env: str = ""

    def schema(self, body: dict[str, Any]) -> Any:
        """The schema in a request; None: it asks for no form."""
        if self.fake is FakeAnthropic:
            return body.get("output_config", {}).get("format", {}).get("schema")
        if self.fake is FakeGemini:
            return body.get("generationConfig", {}).get("responseJsonSchema")
        return body.get("response_format", {}).get("json_schema", {}).get("schema")


DIALECTS = {
    **{name: Dialect(FakeOpenAI, env=f"{name.upper()}_API_KEY") for name in CHAT},
    "anthropic": Dialect(FakeAnthropic, "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    "gemini": Dialect(FakeGemini, "gemini-2.5-flash", "GEMINI_API_KEY"),
}
BOUNDS = {"openai": {"minItems", "maxItems"}, "openrouter": {"minItems"}, "anthropic": {"minItems"}}


async def run_question(folder, fake, provider, *, structured=True, times=1):
    """Runs over two workers that say what they were asked, conducted by the fake's model."""
    dialect = DIALECTS[provider]
    file = folder / "batuta.toml"
    file.write_text(
        FILE.format(
            provider=provider, model=dialect.model, url=fake.url, structured=str(structured).lower()
        )
    )
    clients = {worker.id: ScriptedClient(lambda _: "42") for worker in POOL}
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(file), environ={dialect.env: KEY})
        return [await conduct(QUESTION, config.conductor, POOL, clients) for _ in range(times)]


@pytest.mark.parametrize("provider", DIALECTS)
async def test_each_dialect_asks_for_the_form_and_reads_it(provider, tmp_path):
    dialect = DIALECTS[provider]
    open_key = provider in {"llamacpp", "ollama"}
    async with dialect.fake(json.dumps(STEPS), check=not open_key) as fake:
        if dialect.fake is FakeOpenAI:
            fake.strict_openai = provider == "openai"
        (run,) = await run_question(tmp_path, fake, provider)
        assert not fake.wrong
        (asked,) = fake.requests
    schema = dialect.schema(asked.body)
    said = json.dumps(asked.body, ensure_ascii=False)
    assert run.outcome is Outcome.ANSWERED and run.rounds[0].workflow == FLOW
    assert schema["properties"]["steps"]["items"]["properties"]["model_id"]["enum"] == ["0", "1"]
    bounds = {name for name in ("minItems", "maxItems", "maxLength") if f'"{name}"' in said}
    assert bounds == BOUNDS.get(provider, {"minItems", "maxItems", "maxLength"})
    assert "Write the lists as one JSON object" in said and PREFILL.strip() not in said
    assert await JsonValidator(schema).find_fault(json.dumps(STEPS)) is None


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
async def test_without_the_setting_nothing_is_asked_for(provider, tmp_path):
    async with DIALECTS[provider].fake(LISTS) as fake:
        (run,) = await run_question(tmp_path, fake, provider, structured=False)
        body = fake.requests[0].body
    assert run.rounds[0].workflow == FLOW and DIALECTS[provider].schema(body) is None
    assert DRAFT_FORM[:30] not in json.dumps(body, ensure_ascii=False)


class WithoutForms(FakeOpenAI):
    """A server that knows no `response_format`."""

    def validate(self, received):
        if "response_format" in received.body:
            raise RuleError("response_format is not supported")


async def test_a_provider_that_refuses_the_form_is_asked_freely_and_then_always(tmp_path):
    async with WithoutForms(LISTS) as fake:
        first, second = await run_question(tmp_path, fake, "vllm", times=2)
        forms = ["response_format" in one.body for one in fake.requests]
    assert first.rounds[0].workflow == second.rounds[0].workflow == FLOW
    assert forms == [True, True, False, False], "the schema, JSON of any form, words; then words"
    assert first.outcome is second.outcome is Outcome.ANSWERED


async def test_another_refusal_is_told_once_and_nothing_is_learned_of_it(tmp_path):
    class Closed(FakeOpenAI):
        def validate(self, received):
            raise RuleError("no such model")

    async with Closed(LISTS) as fake:
        (run,) = await run_question(tmp_path, fake, "vllm")
        assert len(fake.requests) == 2
    decision = run.rounds[0].decision
    assert isinstance(decision, MalformedPlan) and "no such model" in decision.reason
    assert run.outcome is Outcome.FALLBACK


def test_three_lists_of_a_model_that_was_not_held_are_read_too():
    assert parse_workflow(f"I think.\n{LISTS}", POOL) == FLOW
    assert parse_workflow(json.dumps(STEPS), POOL) == FLOW


async def test_no_step_accepts_the_answer_in_a_later_round_only():
    text = json.dumps({"thoughts": "Fine.", "steps": []})
    assert isinstance(parse_workflow(text, POOL, revise=True), AcceptedAnswer)
    with pytest.raises(WorkflowError, match="has no step"):
        parse_workflow(text, POOL)
    form = draft_format(POOL, 5, revise=True, bounds=("minItems",))
    assert await JsonValidator(form.schema).find_fault(text) is None
    first = draft_format(POOL, 5, revise=False, bounds=("minItems",))
    assert await JsonValidator(first.schema).find_fault(text) is not None


WRONG = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    steps=st.lists(st.dictionaries(st.sampled_from(["model_id", "subtask", "access_list"]), WRONG))
)
def test_whatever_json_a_model_writes_is_a_workflow_or_a_sentence(steps):
    try:
        read = parse_workflow(json.dumps({"steps": steps}), POOL)
    except WorkflowError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(read, Workflow)
        for step in read.steps:
            step.subtask.encode("utf-8")


@pytest.mark.parametrize("text", ["{", '{"steps": 3}', "{" * 100_000, '{"steps": [[]]}', "{}"])
def test_broken_json_is_a_sentence(text):
    with pytest.raises(WorkflowError):
        parse_workflow(text, POOL)
