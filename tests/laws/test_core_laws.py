"""Laws of the nouns: usage and cost add up, ids of tool calls and workflows' levels hold for any value."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Cost, Price, Step, Usage, WorkerId, Workflow
from batuta.core.message import ToolCallOrigin, decode_call_id, encode_call_id
from batuta.core.token_estimate import estimate_tokens
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

COUNTS = st.integers(0, 10**9)
USAGES = st.builds(
    lambda calls, cached, plain, output: Usage(
        calls=calls, cached=cached, input=cached + plain, output=output
    ),
    *[COUNTS] * 4,
)
COSTS = st.builds(
    lambda usd, calls: Cost(usd=Decimal(usd) / 10**7, unpriced_calls=calls), COUNTS, COUNTS
)


@given(USAGES, USAGES, USAGES)
def test_usage_is_a_sum(one, two, three):
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one and one + ZERO_USAGE == one


@given(COSTS, COSTS, COSTS)
def test_cost_is_a_sum(one, two, three):
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one and one + ZERO_COST == one


@given(USAGES, USAGES, st.integers(0, 10**4), st.integers(0, 10**4))
def test_calls_cost_together_what_they_cost_apart(one, two, dear, cheap):
    price = Price(input=Decimal(cheap) / 100, output=Decimal(dear) / 100)
    for known in (price, None):
        assert usage_cost(one + two, known) == usage_cost(one, known) + usage_cost(two, known)


@given(
    st.from_regex(r"[A-Za-z0-9-]{1,24}", fullmatch=True),
    st.integers(0, 98),
    st.integers(0, 99),
    st.integers(0, 999),
)
def test_an_id_of_a_tool_call_says_where_it_came_from(run, round_, step, number):
    origin = ToolCallOrigin(f"run_{run}", round_, step, number)
    assert decode_call_id(encode_call_id(origin)) == origin and len(encode_call_id(origin)) <= 40


@given(st.text())
def test_any_other_id_is_somebody_elses(text):
    found = decode_call_id(text)
    assert found is None or encode_call_id(found).startswith("call_")


@given(st.text(), st.text())
def test_a_longer_text_never_has_fewer_tokens(one, two):
    assert estimate_tokens(one) <= estimate_tokens(one + two)


@st.composite
def workflows(draw):
    steps = []
    for index in range(draw(st.integers(1, 8))):
        reads = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append(Step(subtask="do", worker=WorkerId("a"), access=tuple(sorted(reads))))
    return Workflow(tuple(steps))


@given(workflows())
def test_a_step_is_deeper_than_all_it_reads_and_no_level_is_empty(workflow):
    levels = workflow.levels
    for step, level in zip(workflow.steps, levels, strict=True):
        assert all(levels[earlier] < level for earlier in step.access)
        assert step.access or level == 0
    assert set(levels) == set(range(workflow.depth))
    assert 1 <= workflow.width <= len(workflow) <= workflow.width * workflow.depth
