"""A conductor held to the form of a workflow by its provider, in each dialect; one that refuses."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import HttpTransport, ScriptedClient
from batuta.conductors import LLMConductor
from batuta.conductors.llm_conductor import StructuredDrafts
from batuta.config.load import load_config
from batuta.core import (
    AcceptedAnswer,
    MalformedPlan,
    Outcome,
    Pool,
    Question,
    Reply,
    Step,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import conduct
from batuta.errors import FormRefusedError, WorkflowError
from batuta.gateway.serving.deliver import response_headers
from batuta.language import parse_workflow
from batuta.language.draft_schema import draft_format
from batuta.language.prompt import PREFILL
from batuta.schemas import JsonValidator
from batuta.usage import Cost, Usage
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.server import KEY, RuleError, Said

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
NAMED = [
    {"model_id": "b", "subtask": "Solve it.", "access_list": []},
    {"model_id": "a", "subtask": "Check it.", "access_list": ["0"]},
]
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
{structured}
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
    "deepseek": Dialect(FakeOpenAI, env="DEEPSEEK_API_KEY"),
}
HOLDING = [name for name in DIALECTS if name != "deepseek"]
BOUNDS = {"openai": {"minItems", "maxItems"}, "openrouter": {"minItems"}, "anthropic": {"minItems"}}


async def run_question(folder, fake, provider, *, structured=None, times=1, model=None):
    """Runs over two workers that say what they were asked, conducted by the fake's model."""
    dialect = DIALECTS[provider]
    file = folder / "batuta.toml"
    said = "" if structured is None else f"structured = {str(structured).lower()}"
    model = model or dialect.model
    file.write_text(FILE.format(provider=provider, model=model, url=fake.url, structured=said))
    clients = {worker.id: ScriptedClient(lambda _: "42") for worker in POOL}
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(file), environ={dialect.env: KEY})
        return [await conduct(QUESTION, config.conductor, POOL, clients) for _ in range(times)]


@pytest.mark.parametrize("provider", HOLDING)
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
    assert "Write one JSON object" in said and PREFILL.strip() not in said
    assert await JsonValidator(schema).find_fault(json.dumps(STEPS)) is None


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
async def test_where_the_setting_says_no_nothing_is_asked_for(provider, tmp_path):
    async with DIALECTS[provider].fake(LISTS) as fake:
        (run,) = await run_question(tmp_path, fake, provider, structured=False)
        body = fake.requests[0].body
    assert run.rounds[0].workflow == FLOW and DIALECTS[provider].schema(body) is None
    assert "Write one JSON object" not in json.dumps(body, ensure_ascii=False)


class WithoutForms(FakeOpenAI):
    """A server that knows no `response_format`."""

    def validate(self, received):
        if "response_format" in received.body:
            raise RuleError("response_format is not supported")


async def test_a_provider_that_refuses_the_form_is_asked_freely_and_then_always(tmp_path):
    async with WithoutForms(LISTS) as fake:
        first, second = await run_question(tmp_path, fake, "vllm", times=2)
        forms = ["response_format" in one.body for one in fake.requests]
        said = json.dumps(fake.requests[-1].body, ensure_ascii=False)
    assert first.rounds[0].workflow == second.rounds[0].workflow == FLOW
    assert forms == [True, False, False], "refused once; then free, and free at once"
    assert "three Python lists" in said and "JSON" not in said
    assert first.outcome is second.outcome is Outcome.ANSWERED
    assert first.rounds[0].drafts == (), "a refusal is no draft"


async def test_a_form_that_is_wanted_is_told_in_words_where_it_is_refused(tmp_path):
    async with WithoutForms(json.dumps(STEPS)) as fake:
        first, second = await run_question(tmp_path, fake, "vllm", structured=True, times=2)
        forms = ["response_format" in one.body for one in fake.requests]
        said = json.dumps(fake.requests[-1].body, ensure_ascii=False)
    assert first.rounds[0].workflow == second.rounds[0].workflow == FLOW
    assert forms == [True, True, False, False], "the schema, JSON of any form, words; then words"
    assert "valid under this JSON schema" in said


async def test_a_provider_that_is_known_to_hold_no_form_is_asked_freely_at_once(tmp_path):
    async with FakeOpenAI(LISTS, strict_openai=False) as fake:
        (run,) = await run_question(tmp_path, fake, "deepseek")
        assert ["response_format" in one.body for one in fake.requests] == [False]
    assert run.rounds[0].workflow == FLOW


async def test_a_refusal_that_cost_something_is_counted_beside_the_free_draft():
    paid = Cost(usd=Decimal("0.25"))
    refusal = FormRefusedError("no forms", usage=Usage(calls=1, input=7), cost=paid)
    drafted = Reply(text=LISTS, usage=Usage(calls=1, input=5, output=3), cost=paid)
    model = ScriptedClient([refusal, drafted])
    held = StructuredDrafts()
    conductor = LLMConductor(name="c", client=model, structured=held)
    run = await conduct(
        QUESTION, conductor, POOL, {worker.id: ScriptedClient(lambda _: "42") for worker in POOL}
    )
    draft = run.rounds[0].decision.draft
    assert run.rounds[0].workflow == FLOW and held.is_refused
    assert draft.usage.calls == 2 and draft.usage.input == 12 and draft.cost.usd == Decimal("0.5")


CUT = json.dumps(STEPS)[:-30]
"""The first step is whole, the second has lost its end."""


async def test_of_a_draft_that_was_cut_the_whole_steps_are_run(tmp_path):
    async with FakeOpenAI(Said(CUT, finish="length"), check=False) as fake:
        (run,) = await run_question(tmp_path, fake, "llamacpp")
        assert len(fake.requests) == 1
    assert run.rounds[0].workflow == Workflow(FLOW.steps[:1]) and run.outcome is Outcome.ANSWERED


async def test_a_cut_draft_without_a_whole_step_costs_one_more_call_then_the_best_worker(tmp_path):
    text = json.dumps(STEPS)[:70]
    async with FakeOpenAI(Said(text, finish="length"), check=False) as fake:
        (run,) = await run_question(tmp_path, fake, "llamacpp")
        assert len(fake.requests) == 2
    (first,), last = run.rounds[0].drafts, run.rounds[0].decision
    assert isinstance(last, MalformedPlan) and last.reason == first.reason
    assert first.reason == "the reply was truncated at 1024 tokens: no step is complete"
    assert run.outcome is Outcome.FALLBACK
    assert response_headers(run)["x-batuta-conductor"] == "no-workflow"


async def test_a_small_model_is_held_to_few_tokens_and_short_texts(tmp_path):
    async with FakeOpenAI(json.dumps(STEPS | {"steps": NAMED}), check=False) as fake:
        (run,) = await run_question(tmp_path, fake, "ollama", model="qwen2.5-coder:1.5b")
        body = fake.requests[0].body
    schema = DIALECTS["ollama"].schema(body)
    step = schema["properties"]["steps"]["items"]["properties"]
    assert body["max_tokens"] == 400 and schema["properties"]["steps"]["maxItems"] == 5
    assert step["model_id"]["enum"] == ["a", "b"] and step["access_list"]["maxItems"] == 4
    texts = schema["properties"]["thoughts"]["maxLength"] + 5 * step["subtask"]["maxLength"]
    assert texts <= 1200, "some 300 tokens; the rest is the form"
    assert run.rounds[0].workflow == FLOW


@given(cut=st.integers(0, len(json.dumps(STEPS))))
def test_of_a_cut_draft_never_more_is_read_than_its_whole_steps(cut):
    text = json.dumps(STEPS)[:cut]
    try:
        read = parse_workflow(text, POOL, truncated=True)
    except WorkflowError:
        assert text.count('"access_list"') <= 1
    else:
        assert isinstance(read, Workflow)
        assert read.steps == FLOW.steps[: len(read.steps)]
        assert len(read.steps) >= min(text.count("]}"), 2)


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
    assert parse_workflow(f"Here it is:\n```json\n{json.dumps(STEPS, indent=1)}\n```", POOL) == FLOW
    told = json.dumps({"thoughts": LISTS, "steps": [STEPS["steps"][0]]})
    assert parse_workflow(told, POOL) == Workflow(FLOW.steps[:1]), "lists in a thought are none"


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
