"""Lists, orders and totals of stored runs: in both databases what a reading of every run says."""

from dataclasses import replace
from decimal import Decimal
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.strategies import make_run

from batuta.core import Cost, Outcome, RunId, Usage, WorkerId
from batuta.store import Store
from batuta.store.rows import (
    LABEL_BYTES,
    RequestLabels,
    encode_labels,
    format_label,
    label_values,
)
from batuta.store.run_filter import RUN_PARAMETERS, RunFilterError, RunSort, parse_run_filter
from batuta.store.run_list import SearchBounds, find_runs, sum_runs

pytestmark = pytest.mark.anyio
NOON = 1_800_014_400.0  # 2027-01-15 12:00:00 UTC
HOUR = 3600.0
COUNT = 60


def run_of(number):
    """One of many, each of whose figures differ from the others' in another order."""
    run = make_run(number, question=f"question {number} of {number % 7}")
    (round_,) = run.rounds
    worker = WorkerId(("a", "b", "gpt large")[number % 3])
    reply = replace(
        round_.steps[0].result,
        usage=Usage(calls=1, input=10 * (number * 17 % 23), output=number),
        cost=Cost(Decimal(number * 31 % 19) / 1000, number % 5 == 0),
    )
    steps = tuple(replace(one, worker=worker, planned=worker, result=reply) for one in round_.steps)
    failed = number % 4 == 0
    return replace(
        run,
        header=replace(
            run.header,
            id=RunId(f"run_{number:06}"),
            started=NOON + HOUR * (number // 2),
            model=f"system-{number % 2}",
        ),
        rounds=(replace(round_, steps=steps),),
        seconds=float(number * 13 % 11),
        outcome=Outcome.FAILED if failed else Outcome.ANSWERED,
        error_code="timed_out" if failed else None,
        answer=None if failed else run.answer,
    )


async def fill(store):
    for number in range(COUNT):
        said = RequestLabels(user=f"user {number % 4}", tags=(f"app=app-{number % 3}", "all"))
        session = f"ses_{number // 10}"
        await store.append(run_of(number), f"tenant-{number % 2}", session=session, labels=said)
    await store.flush()
    for number in range(0, COUNT, 3):
        await store.score(f"run_{number:06}", number % 2 / 2)


def matches(row, wanted):
    """Whether a filter finds a run, told in the plainest way."""
    tokens = row.input_tokens + row.output_tokens
    ranges = (
        (row.cost.usd, wanted.min_cost, wanted.max_cost),
        (row.seconds, wanted.min_seconds, wanted.max_seconds),
        (tokens, wanted.min_tokens, wanted.max_tokens),
        (row.score, wanted.min_score, wanted.max_score),
    )
    return (
        wanted.tenant in {None, row.tenant}
        and wanted.model in {None, row.model}
        and wanted.session in {None, row.session}
        and (not wanted.outcomes or row.outcome in wanted.outcomes)
        and (wanted.since is None or row.created >= wanted.since)
        and (wanted.until is None or row.created < wanted.until)
        and (wanted.is_judged is None or wanted.is_judged == (row.score is not None))
        and all(f"\n{label}\n" in row.labels for label in wanted.labels)
        and wanted.search.lower() in row.question_preview.lower() + (row.answer_preview or "")
        and all(least is None or (at is not None and at >= least) for at, least, _ in ranges)
        and all(most is None or (at is not None and at <= most) for at, _, most in ranges)
    )


def order_of(row, wanted):
    first = {
        RunSort.CREATED: 0,
        RunSort.COST: row.cost.usd,
        RunSort.SECONDS: row.seconds,
        RunSort.TOKENS: row.input_tokens + row.output_tokens,
        RunSort.SCORE: -1 if row.score is None else row.score,
    }[wanted.sort]
    return first, row.created, row.id


CASES = [
    {},
    {"tenant": "tenant-1"},
    {"model": "system-1", "sort": "cost"},
    {"model": "nothing"},
    {"outcome": "failed,limited", "sort": "seconds", "order": "asc"},
    {"session": "ses_2", "sort": "tokens"},
    {"worker": "gpt large", "user": "user 2"},
    {"error": "timed_out", "tag": "app=app-1"},
    {"tag": "all", "sort": "cost", "order": "asc"},
    {"tag": "app=app"},
    {"worker": "a\nb"},
    {"user": "user 3", "tenant": "tenant-0"},
    {"since": str(NOON + 5 * HOUR), "until": str(NOON + 20 * HOUR), "sort": "cost"},
    {"min_cost": "0.004", "max_cost": "0.012", "sort": "seconds"},
    {"min_seconds": "3", "max_seconds": "7"},
    {"min_tokens": "100", "max_tokens": "180", "sort": "tokens", "order": "asc"},
    {"min_score": "0.5", "judged": "yes"},
    {"judged": "no", "sort": "score"},
    {"max_score": "0", "sort": "cost"},
    {"sort": "score", "order": "asc"},
    {"order": "asc"},
    {"q": "OF 3", "sort": "seconds"},
    {"q": "question 4", "tenant": "tenant-1"},
    {"q": "nothing shows this"},
]


async def read_all(database, wanted, limit, bounds=None):
    """Every page of a list, and how many there were."""
    more = {} if bounds is None else {"bounds": bounds}
    found, after, pages = [], None, 0
    while True:
        page = await find_runs(database, wanted, limit, after, **more)
        found += page.rows
        pages += 1
        after = page.next_cursor
        if after is None:
            return found, pages


@pytest.mark.slow
async def test_lists_and_totals_are_those_of_a_reading_of_every_run(target):
    async with Store(target) as store:
        await fill(store)
        everything, _ = await read_all(store.database, parse_run_filter(()), 1000)
        assert len(everything) == COUNT
        for case in CASES:
            wanted = parse_run_filter(case.items())
            expected = [row for row in everything if matches(row, wanted)]
            expected.sort(key=lambda row, w=wanted: order_of(row, w), reverse=not wanted.ascending)
            for bounds in (None, SearchBounds(few=0), SearchBounds(few=5)):
                found, _ = await read_all(store.database, wanted, 7, bounds)
                assert [row.id for row in found] == [row.id for row in expected], (case, bounds)
            check_totals(await store.totals(wanted), expected)


def check_totals(totals, expected):
    times = sorted(row.seconds for row in expected)
    scores = [row.score for row in expected if row.score is not None]
    assert totals.runs == len(expected) and totals.searched_to is None
    assert totals.unanswered == sum(row.outcome is Outcome.FAILED for row in expected)
    assert totals.cost == sum((row.cost for row in expected), Cost(Decimal(0), 0))
    assert totals.input_tokens == sum(row.input_tokens for row in expected)
    assert totals.output_tokens == sum(row.output_tokens for row in expected)
    assert totals.judged == len(scores)
    if scores:
        assert totals.mean_score == pytest.approx(sum(scores) / len(scores))
    ranks = [times[ceil(part * len(times)) - 1] if times else None for part in (0.5, 0.95)]
    assert [totals.median_seconds, totals.p95_seconds] == ranks


async def test_what_was_not_looked_at_is_told_and_a_list_by_time_goes_on_there(target):
    few = SearchBounds(window=10, words_window=10, common_words_window=10, few=0)
    async with Store(target) as store:
        await fill(store)
        database = store.database
        for case in ({"q": "question 3 of"}, {"min_cost": "0.018"}, {"min_cost": "0.018", "order": "asc"}):  # fmt: skip
            wanted = parse_run_filter(case.items())
            whole, _ = await read_all(database, wanted, 50)
            found, pages = await read_all(database, wanted, 50, few)
            assert [row.id for row in found] == [row.id for row in whole] and pages >= COUNT / 10
        dearest = parse_run_filter([("sort", "cost")])
        page = await find_runs(database, dearest, 50, bounds=few)
        newest = [f"run_{number:06}" for number in range(COUNT - 10, COUNT)]
        assert sorted(row.id for row in page.rows) == newest and page.next_cursor is None
        assert page.searched_to == NOON + HOUR * ((COUNT - 10) // 2)
        totals = await sum_runs(database, dearest, bounds=few)
        assert (totals.runs, totals.searched_to) == (10, page.searched_to)
        # A system that only old runs were asked of is found where its runs begin.
        old = parse_run_filter([("session", "ses_0"), ("sort", "seconds")])
        page = await find_runs(database, old, 50, bounds=few)
        assert len(page.rows) == 10 and page.searched_to is None


async def test_no_tenant_finds_what_others_said(target):
    async with Store(target) as store:
        await fill(store)
        for case in CASES:
            wanted = replace(parse_run_filter(case.items()), tenant="tenant-1")
            for row in (await store.find(wanted, 100)).rows:
                assert row.tenant == "tenant-1"
            assert (await store.totals(wanted)).runs <= COUNT // 2
        assert await store.models() == ["system-0", "system-1"]


async def test_a_cursor_of_another_order_is_refused(target):
    async with Store(target) as store:
        await fill(store)
        by_cost = parse_run_filter([("sort", "cost")])
        page = await store.find(by_cost, 5)
        wrong = ("", "x", "1.5", "nan_1.5_run_1", "1_nan_run", f"{NOON}_run_000001")
        for after in (*wrong, "1e999999_1.5_run_1", "1e-99999_1.5_run_1"):
            with pytest.raises(ValueError, match="not a cursor"):
                await store.find(by_cost, 5, after)
        assert len((await store.find(by_cost, 5, page.next_cursor)).rows) == 5


async def test_what_a_request_says_is_kept_with_its_content_and_goes_with_it(target):
    said = RequestLabels(user="alice\nof b", tags=("app=web", "app=web", "x" * 900))
    async with Store(target) as store:
        await store.append(make_run(1), labels=said)
        await store.append(make_run(2), labels=said, content=False)
        await store.flush()
        row = await store.summary("run_000001")
        assert (row.user, row.tags[0], len(row.tags)) == ("alice of b", "app=web", 2)
        assert row.workers == ("a",)
        bare = await store.summary("run_000002")
        assert (bare.user, bare.tags, bare.workers) == (None, (), ("a",))
        long = parse_run_filter([("tag", "x" * 450), ("user", "alice  of b")])
        assert [row.id for row in (await store.find(long)).rows] == ["run_000001"]
        assert await store.delete("run_000001")
        assert (await store.find(long)).rows == []


texts = st.text(max_size=300)


@given(st.lists(st.tuples(st.sampled_from(["worker", "user", "tag"]), texts), max_size=30))
def test_labels_are_bounded_and_read_back(pairs):
    labels = [format_label(kind, text) for kind, text in pairs]
    column = encode_labels(labels)
    if column is None:
        assert not labels
        return
    assert len(column.encode()) <= LABEL_BYTES
    kept = column.strip("\n").split("\n") if column.strip("\n") else []
    wanted = list(dict.fromkeys(labels))
    assert kept == wanted[: len(kept)]
    for kind in ("worker", "user", "tag"):
        values = [line.partition(":")[2] for line in kept if line.startswith(f"{kind}:")]
        assert list(label_values(column, kind)) == values


@given(st.lists(st.tuples(st.sampled_from(RUN_PARAMETERS) | texts, texts), max_size=4))
@settings(max_examples=3 * settings().max_examples)
def test_whatever_is_given_is_a_filter_or_a_sentence_about_a_parameter(pairs):
    try:
        wanted = parse_run_filter(pairs, NOON)
    except RunFilterError as error:
        assert error.name in {name[:80] for name, _ in pairs}
        assert str(error).endswith(".") and len(str(error)) < 400
    else:
        assert all(text.strip() for _, text in pairs) and isinstance(wanted.sort, RunSort)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("24h", 24), ("30m", 0.5), ("7d", 168), ("2w", 336), ("1799928000", 24)],
)
def test_times_are_ages_or_moments(text, hours):
    wanted = parse_run_filter([("since", text), ("until", text)], NOON)
    assert wanted.since == wanted.until == NOON - hours * HOUR


@pytest.mark.parametrize("text", ["1e-99999", "0e-99999", "1e99999", "nan"])
def test_dollars_that_a_database_would_refuse_are_refused(text):
    with pytest.raises(RunFilterError, match="must be a number of dollars"):
        parse_run_filter([("min_cost", text)])


def test_a_day_counts_to_its_end_and_a_zone_is_read():
    day = parse_run_filter([("since", "2027-01-14"), ("until", "2027-01-14")], NOON)
    yesterday = parse_run_filter([("since", "yesterday"), ("until", "yesterday")], NOON)
    assert day.until - day.since in {23 * HOUR, 24 * HOUR, 25 * HOUR}
    assert yesterday.until - yesterday.since in {23 * HOUR, 24 * HOUR, 25 * HOUR}
    moment = parse_run_filter([("since", "2027-01-15T14:00+02:00")], NOON)
    assert moment.since == NOON
