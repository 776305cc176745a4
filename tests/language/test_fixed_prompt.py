"""The part of a conductor's prompt that is the same for every question, and its two sizes."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.language.test_prompt import FLOW, finished_round

from batuta.clients import ScriptedClient
from batuta.clients.anthropic.messages import anthropic_messages
from batuta.clients.openai.client import (
    COMPATIBLE_DIALECT,
    OPENROUTER_DIALECT,
    OpenAIChatAdapter,
)
from batuta.conductors.llm_conductor import StructuredDrafts
from batuta.conductors.prompted import ConductorOptions, is_brief, prompted_conductor
from batuta.core import (
    PlanningContext,
    Pool,
    Price,
    Question,
    ResponseFormat,
    Sampling,
    Text,
    Tool,
    Worker,
    WorkerId,
    Workflow,
    user_message,
)
from batuta.core.token_estimate import estimate_tokens
from batuta.core.worker import PROGRAM
from batuta.language import PromptOptions, conductor_request, parse_workflow
from batuta.language.draft_schema import BRIEF_BOUNDS, draft_format
from batuta.language.material import QUESTION_HEADING, WORKERS_HEADING
from batuta.schemas import JsonValidator

PAID = Price(input=Decimal(1), output=Decimal(2))
BIG = Worker(id=WorkerId("big"), model="m-big", description="Reasons.", price=PAID, parameters=1.5)
SMALL = Worker(id=WorkerId("small"), model="m-small", description="Quick.", parameters=0.5)
RUNNER = Worker(id=WorkerId("runner"), model="python", tags=(PROGRAM,))
POOL = Pool((BIG, SMALL, RUNNER))
ROUNDS = (finished_round(FLOW, ["P", "G", "A"]),)
BRIEF = PromptOptions(brief=True, prices=True)
FULL = PromptOptions(prices=True)
FORM = draft_format(POOL, 5, revise=False, bounds=("minItems", "maxItems", "maxLength"))
NAMED = draft_format(
    POOL, 5, revise=False, bounds=("maxItems", "maxLength"), texts=BRIEF_BOUNDS, names=True
)
WORDINGS = [(FULL, None), (FULL, FORM), (BRIEF, None), (BRIEF, NAMED)]
QUESTIONS = st.builds(
    Question,
    messages=st.lists(st.text(min_size=1).map(user_message), min_size=1, max_size=3).map(tuple),
    tools=st.sampled_from([(), (Tool(name="look_up"),)]),
    response_format=st.sampled_from([None, ResponseFormat(kind="json_object")]),
)


def parts(request):
    """The texts of the prompt."""
    (message,) = request.messages
    return tuple(part for part in message.parts if isinstance(part, Text))


def asked(question, rendering, form, pool=POOL, **facts):
    context = PlanningContext(question=question, pool=pool, **facts)
    return conductor_request(context, rendering, Sampling(), form)


@given(one=QUESTIONS, other=QUESTIONS, wording=st.sampled_from(WORDINGS))
def test_what_is_the_same_for_every_question_comes_first_byte_for_byte(one, other, wording):
    rendering, form = wording
    (fixed, rest), (fixed_too, _) = (
        parts(asked(question, rendering, form)) for question in (one, other)
    )
    assert fixed == fixed_too and fixed.cache == "5m"
    assert fixed.text.endswith("\n\n") and rest.text.startswith(f"{QUESTION_HEADING}\n")
    assert WORKERS_HEADING in fixed.text and "EXAMPLE 1" in fixed.text


def test_a_later_round_begins_with_the_same_bytes():
    pool = Pool(tuple(replace(BIG, id=WorkerId(name)) for name in "ab"))
    first = asked(Question.of("q"), FULL, None, pool)
    later = asked(Question.of("q"), FULL, None, pool, previous=ROUNDS)
    assert parts(first)[0] == parts(later)[0]


def test_the_fixed_part_is_marked_where_a_dialect_has_marks_and_is_one_text_elsewhere():
    request = asked(Question.of("q"), FULL, None)
    (turn,) = anthropic_messages(request.messages)
    assert [block.get("cache_control") for block in turn["content"]] == [
        {"type": "ephemeral"},
        None,
    ]
    routed = OpenAIChatAdapter("m", OPENROUTER_DIALECT).build_body(request, stream=False)
    assert routed["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
    plain = OpenAIChatAdapter("m", COMPATIBLE_DIALECT).build_body(request, stream=False)
    assert plain["messages"][0]["content"] == request.messages[0].text


@pytest.mark.parametrize("wording", WORDINGS)
def test_the_examples_are_written_as_the_draft_is_to_be_and_can_be_read(wording):
    rendering, form = wording
    fixed = parts(asked(Question.of("q"), rendering, form))[0].text
    examples = fixed.split("EXAMPLE ")[1:]
    assert len(examples) == (3 if rendering.brief else 4)
    for text in examples:
        draft = text[text.index("{") :] if form else text
        assert isinstance(parse_workflow(draft.strip(), POOL), Workflow)
    assert ("three Python lists" in fixed) == (form is None)


async def test_an_example_keeps_to_the_form_that_is_asked_for():
    for rendering, form in ((FULL, FORM), (BRIEF, NAMED)):
        fixed = parts(asked(Question.of("q"), rendering, form))[0].text
        for text in fixed.split("EXAMPLE ")[1:]:
            draft = text[text.index("{") :].strip()
            assert await JsonValidator(form.schema).find_fault(draft) is None


def test_the_brief_prompt_is_short_and_calls_the_workers_by_their_names():
    text = asked(Question.of("q"), BRIEF, NAMED).messages[0].text
    full = asked(Question.of("q"), FULL, FORM).messages[0].text
    assert estimate_tokens(text) < 0.55 * estimate_tokens(full)
    assert "\nbig: Reasons. $2 per million tokens.\n" in text and "Model id" not in text
    assert '"model_id": "runner"' in text and "runner writes nothing" in text
    assert "Model 2 writes nothing" in full


def test_workers_whose_ids_are_numbers_keep_their_places_numbers():
    pool = Pool((replace(BIG, id=WorkerId("1")), replace(SMALL, id=WorkerId("0"))))
    text = asked(Question.of("q"), BRIEF, FORM, pool).messages[0].text
    assert "Model id 0: m-big. Reasons." in text and "is the model's number" in text


@pytest.mark.parametrize(
    ("size", "billions", "brief"),
    [
        ("auto", None, False),
        ("auto", 1.5, True),
        ("auto", 70, False),
        ("full", 1.5, False),
        ("brief", None, True),
    ],
)
def test_the_size_follows_the_model_unless_it_is_set(size, billions, brief):
    worker = replace(BIG, parameters=billions)
    assert is_brief(worker, size) is brief
    options = ConductorOptions(size=size)
    made = prompted_conductor("c", worker, ScriptedClient(lambda _: ""), options)
    assert made.rendering.brief is brief
    assert made.sampling.max_tokens == (400 if brief else 1024)
    wanted = replace(options, sampling=Sampling(max_tokens=77))
    asked_for = prompted_conductor("c", worker, ScriptedClient(lambda _: ""), wanted)
    assert asked_for.sampling.max_tokens == 77


def test_the_page_shows_the_cards_of_the_brief_prompt():
    options = ConductorOptions(size="brief", structured=StructuredDrafts())
    made = prompted_conductor("c", BIG, ScriptedClient(lambda _: ""), options)
    shown = made.describe(POOL)
    assert shown.cards[BIG.id] == ("big: Reasons. $2 per million tokens.",)
    assert all(line in shown.text for lines in shown.cards.values() for line in lines)
