"""Hypothesis strategies for runs and their parts."""

from decimal import Decimal

from hypothesis import strategies as st

from batuta.core import (
    AcceptedAnswer,
    Attempt,
    Cost,
    Draft,
    Failure,
    Finish,
    Image,
    Limits,
    MalformedPlan,
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
    RunHeader,
    Sampling,
    Step,
    StepRun,
    Text,
    TimeSpan,
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
    return Usage(
        calls=draw(counts),
        input=whole,
        cached=cached,
        cache_write=written,
        output=reasoning + spoken,
        reasoning=reasoning,
        estimated=draw(counts),
    )


costs = st.builds(Cost, dollars, counts)
prices = st.builds(
    Price, input=dollars, output=dollars, cached=maybe(dollars), cache_write=maybe(dollars)
)
samplings = st.builds(
    Sampling,
    temperature=maybe(floats),
    top_p=maybe(floats),
    max_tokens=maybe(counts),
    stop=few(texts),
    seed=maybe(st.integers()),
    effort=maybe(texts),
)
workers = st.builds(
    Worker,
    id=names,
    model=names,
    description=texts,
    tags=few(texts),
    context_window=maybe(counts),
    price=maybe(prices),
    sampling=samplings,
    strength=maybe(st.floats(0, 1)),
)
pools = st.lists(workers, min_size=1, max_size=3, unique_by=lambda worker: worker.id).map(
    lambda found: Pool(tuple(found))
)
tool_calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
parts = st.one_of(
    st.builds(Text, texts),
    st.builds(Image, url=texts, detail=maybe(texts)),
    tool_calls,
    st.builds(ToolResult, call_id=texts, content=texts),
)
messages = st.builds(
    Message, role=st.sampled_from(Role), parts=few(parts), name=maybe(texts), reasoning=texts
)
tools = st.builds(
    Tool, name=texts, description=texts, parameters=schemas, strict=maybe(st.booleans())
)
formats = st.builds(
    ResponseFormat,
    kind=st.sampled_from(["json_object", "json_schema"]),
    name=texts,
    schema=schemas,
    strict=maybe(st.booleans()),
)
requests = st.builds(
    Request,
    messages=few(messages),
    sampling=samplings,
    tools=few(tools, 1),
    tool_choice=maybe(texts),
    parallel_tool_calls=maybe(st.booleans()),
    response_format=maybe(formats),
    prefill=texts,
)
questions = st.builds(
    Question,
    messages=st.lists(messages, min_size=1, max_size=2).map(tuple),
    tools=few(tools, 1),
    tool_choice=maybe(texts),
    parallel_tool_calls=maybe(st.booleans()),
    response_format=maybe(formats),
    sampling=samplings,
)
replies = st.builds(
    Reply,
    text=texts,
    reasoning=texts,
    tool_calls=few(tool_calls, 1),
    usage=usages(),
    cost=costs,
    finish=st.sampled_from(Finish),
    model=texts,
)
failures = st.builds(
    Failure, code=texts, message=texts, retryable=st.booleans(), usage=usages(), cost=costs
)
spans = st.builds(TimeSpan, seconds, seconds)
drafts = st.builds(Draft, text=texts, usage=usages(), cost=costs, request=maybe(requests))


@st.composite
def workflows(draw):
    steps = [
        Step(
            subtask=draw(texts),
            worker=draw(names),
            access=tuple(i for i in range(index) if draw(st.booleans())),
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    return Workflow(tuple(steps))


malformed = st.builds(MalformedPlan, draft=drafts, reason=texts, outage=st.booleans())
decisions = st.one_of(
    st.builds(Plan, workflows(), drafts), st.builds(AcceptedAnswer, drafts), malformed
)
attempts = st.builds(Attempt, names, failures, seconds)
step_runs = st.builds(
    StepRun,
    index=st.integers(0, 4),
    planned=names,
    worker=names,
    request=maybe(requests),
    result=replies | failures,
    span=spans,
    attempts=few(attempts, 1),
)
rounds = st.builds(
    Round,
    decision=decisions,
    drafts=few(malformed, 1),
    workflow=maybe(workflows()),
    steps=few(step_runs),
    planning=spans,
)
limits = st.builds(
    Limits,
    steps=st.integers(1, 9),
    rounds=st.integers(1, 9),
    tokens=maybe(counts),
    usd=maybe(seconds),
    seconds=maybe(seconds),
)
headers = st.builds(
    RunHeader,
    id=names,
    question=questions,
    pool=pools,
    seed=st.integers(),
    limits=limits,
    conductor=texts,
    model=texts,
    parent=maybe(texts),
    started=seconds,
    versions=st.dictionaries(texts, texts, max_size=2),
)
runs = st.builds(
    Run,
    header=headers,
    rounds=few(rounds),
    outcome=st.sampled_from(Outcome),
    answer=maybe(texts),
    reply=maybe(replies),
    error=maybe(texts),
    error_code=maybe(texts),
    limit=maybe(texts),
    seconds=seconds,
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
    worker = Worker(id="a", model="model-a")  # pyright: ignore[reportArgumentType]
    workflow = Workflow((Step(subtask="Compute it.", worker="a"),))  # pyright: ignore[reportArgumentType]
    reply = Reply(
        text=answer, usage=Usage(calls=1, input=100, output=20), cost=Cost(Decimal("0.000123"))
    )
    step = StepRun(
        index=0,
        planned="a",  # pyright: ignore[reportArgumentType]
        worker="a",  # pyright: ignore[reportArgumentType]
        request=Request(messages=(Message(role=Role.USER, parts=(Text(question),)),)),
        result=reply,
        span=TimeSpan(0.5, 1.0),
    )
    draft = Draft(
        text="plan",
        usage=Usage(calls=1, input=500, cached=100, output=80, reasoning=30),
        cost=Cost(unpriced_calls=1),
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
    round_ = Round(decision=Plan(workflow, draft), workflow=workflow, steps=(step,))
    return Run(
        header=RunHeader(**values | header),
        rounds=(round_,),
        outcome=outcome,
        answer=answer,
        reply=reply,
        seconds=1.25,
    )
