"""Hypothesis strategies for runs and their parts."""

from decimal import Decimal

from hypothesis import strategies as st

from batuta.core import (
    Accepted,
    Attempt,
    Cost,
    Draft,
    Failure,
    Finish,
    Header,
    Image,
    Limits,
    Malformed,
    Message,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Reply,
    Request,
    ResponseFormat,
    Role,
    Round,
    Run,
    Sampling,
    Span,
    Step,
    StepRun,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    Worker,
    Workflow,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
any_texts = st.text(st.characters(), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
counts = st.integers(0, 10**9)
floats = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e6)
dollars = st.decimals(0, 10**6, allow_nan=False, places=None)


def maybe(strategy):
    return st.none() | strategy


def few(strategy, most=2):
    return st.lists(strategy, max_size=most).map(tuple)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
schemas = st.dictionaries(texts, json_values, max_size=2)


@st.composite
def usages(draw):
    cached, written, fresh = draw(counts), draw(counts), draw(counts)
    reasoning, spoken = draw(counts), draw(counts)
    whole = cached + written + fresh
    return Usage(draw(counts), whole, cached, written, reasoning + spoken, reasoning, draw(counts))


costs = st.builds(Cost, dollars, counts)
prices = st.builds(Price, dollars, dollars, maybe(dollars), maybe(dollars))
samplings = st.builds(
    Sampling,
    maybe(floats),
    maybe(floats),
    maybe(counts),
    few(texts),
    maybe(st.integers()),
    maybe(texts),
)
workers = st.builds(
    Worker,
    names,
    names,
    texts,
    few(texts),
    maybe(counts),
    maybe(prices),
    samplings,
    maybe(st.floats(0, 1)),
)
pools = st.lists(workers, min_size=1, max_size=3, unique_by=lambda worker: worker.id).map(
    lambda found: Pool(tuple(found))
)
tool_calls = st.builds(ToolCall, texts, texts, texts)
parts = st.one_of(
    st.builds(Text, texts),
    st.builds(Image, texts, maybe(texts)),
    tool_calls,
    st.builds(ToolResult, texts, texts),
)
messages = st.builds(Message, st.sampled_from(Role), few(parts), maybe(texts), texts)
tools = st.builds(Tool, texts, texts, schemas, maybe(st.booleans()))
formats = st.builds(
    ResponseFormat,
    st.sampled_from(["json_object", "json_schema"]),
    texts,
    schemas,
    maybe(st.booleans()),
)
requests = st.builds(
    Request,
    few(messages),
    samplings,
    few(tools, 1),
    maybe(texts),
    maybe(st.booleans()),
    maybe(formats),
    texts,
)
questions = st.builds(
    Question,
    st.lists(messages, min_size=1, max_size=2).map(tuple),
    few(tools, 1),
    maybe(texts),
    maybe(st.booleans()),
    maybe(formats),
    samplings,
)
replies = st.builds(
    Reply, texts, texts, few(tool_calls, 1), usages(), costs, st.sampled_from(Finish), texts
)
failures = st.builds(Failure, texts, texts, st.booleans(), usages(), costs)
spans = st.builds(Span, seconds, seconds)
drafts = st.builds(Draft, texts, usages(), costs, maybe(requests))


@st.composite
def workflows(draw):
    steps = [
        Step(draw(texts), draw(names), tuple(i for i in range(index) if draw(st.booleans())))
        for index in range(draw(st.integers(1, 3)))
    ]
    return Workflow(tuple(steps))


malformed = st.builds(Malformed, drafts, texts, st.booleans())
decisions = st.one_of(st.builds(Plan, workflows(), drafts), st.builds(Accepted, drafts), malformed)
attempts = st.builds(Attempt, names, failures, seconds)
step_runs = st.builds(
    StepRun,
    st.integers(0, 4),
    names,
    names,
    maybe(requests),
    replies | failures,
    spans,
    few(attempts, 1),
)
rounds = st.builds(Round, decisions, few(malformed, 1), maybe(workflows()), few(step_runs), spans)
limits = st.builds(
    Limits,
    st.integers(1, 9),
    st.integers(1, 9),
    maybe(counts),
    maybe(seconds),
    maybe(seconds),
)
headers = st.builds(
    Header,
    names,
    questions,
    pools,
    st.integers(),
    limits,
    texts,
    texts,
    maybe(texts),
    seconds,
    st.dictionaries(texts, texts, max_size=2),
)
runs = st.builds(
    Run,
    headers,
    few(rounds),
    st.sampled_from(Outcome),
    maybe(texts),
    maybe(replies),
    maybe(texts),
    maybe(texts),
    maybe(texts),
    seconds,
)


def make_run(
    number=0,
    *,
    question="What is 6*7?",
    answer="42",
    model="batuta",
    outcome=Outcome.ANSWERED,
    **header,
):
    """A plain run of one step; its number is its id and its time."""
    worker = Worker("a", "model-a")
    workflow = Workflow((Step("Compute it.", "a"),))
    reply = Reply(answer, usage=Usage(1, 100, output=20), cost=Cost(Decimal("0.000123")))
    step = StepRun(
        0, "a", "a", Request((Message(Role.USER, (Text(question),)),)), reply, Span(0.5, 1.0)
    )
    draft = Draft(
        "plan", Usage(1, 500, cached=100, output=80, reasoning=30), Cost(unpriced_calls=1)
    )
    values = {
        "id": f"run_{number:06}",
        "question": Question.of(question),
        "pool": Pool((worker,)),
        "seed": 1,
        "limits": Limits(),
        "conductor": "fixed",
        "model": model,
        "started": 1e9 + number,
    }
    played = Round(Plan(workflow, draft), workflow=workflow, steps=(step,))
    return Run(Header(**values | header), (played,), outcome, answer, reply, seconds=1.25)
