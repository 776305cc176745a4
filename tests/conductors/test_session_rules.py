"""Sessions as pure values: the turn, boundaries, the price of a switch, the state."""

from __future__ import annotations

from dataclasses import asdict, replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.conductors.sessions.boundaries import Boundary, find_moment
from batuta.conductors.sessions.patterns import price_switch
from batuta.conductors.sessions.review import find_reviewer, model_family, read_verdict
from batuta.conductors.sessions.state import (
    MOST_ACTIONS,
    MOST_FAILURES,
    MOST_THREADS,
    MOST_WARM,
    NEW_SESSION,
    SessionEntry,
    SessionRules,
    SessionThread,
    WarmPrefix,
    read_turn,
    user_words,
)
from batuta.core import (
    Cost,
    Message,
    PlanningContext,
    Pool,
    Price,
    Question,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Worker,
    WorkerId,
    assistant_message,
    user_message,
)

A, B = WorkerId("a"), WorkerId("b")
PRICE = Price(input=Decimal(10), output=Decimal(20), cached=Decimal(1))
POOL = Pool(
    (
        Worker(id=A, model="claude-a", price=PRICE, strength=0.5, context_window=100_000),
        Worker(id=B, model="gpt-b", price=PRICE, strength=0.9),
    )
)
RULES = SessionRules()
TOOLS = (Tool(name="Read"), Tool(name="Bash"))
BEGUN = SessionThread(acting=A, turn="t", tokens=100)


def action(result="ok", name="Bash", arguments="{}", number=0):
    made = ToolCall(id=f"c{number}", name=name, arguments=arguments)
    return (
        Message(role=Role.ASSISTANT, parts=(made,)),
        Message(role=Role.TOOL, parts=(ToolResult(call_id=made.id, content=result),)),
    )


def talk(*turns):
    messages = [m for turn in turns for m in (turn if isinstance(turn, tuple) else (turn,))]
    return Question(messages=tuple(messages), tools=TOOLS)


def moment(question, thread: SessionThread | None = BEGUN, rules=RULES, tokens=100):
    return find_moment(thread, question, read_turn(question), tokens=tokens, pool=POOL, rules=rules)


TASK = user_message("Mend it")


@pytest.mark.parametrize(
    "words", ["continue", "Go on.", "  YES! ", "ok", "weiter", "\u7ee7\u7eed", "please continue..."]
)
def test_words_that_set_no_task_let_the_worker_go_on(words):
    assert moment(talk(TASK, assistant_message("Shall I?"), user_message(words))).boundary is None


@pytest.mark.parametrize("words", ["continue with the docs", "no", "stop", "fix x", "\u0394", "?"])
def test_other_words_are_a_new_task(words):
    question = talk(TASK, assistant_message("Done."), user_message(words))
    assert moment(question).boundary is Boundary.TASK


@pytest.mark.parametrize(
    ("result", "fails"),
    [
        ("Error: no such file", True),
        ("<tool_use_error>x</tool_use_error>", True),
        ("Traceback (most recent call last):", True),
        ("ModuleNotFoundError: no module", True),
        ("Exit code 1\nx", True),
        ("Wall time: 1\nProcess exited with code 127\nOutput:", True),
        ('{"output": "x", "metadata": {"exit_code": 2, "duration": 1}}', True),
        ("x" * 5000 + "\nexit code: 3", True),
        ("Exit code 0", False),
        ('{"exit_code": 0}', False),
        ("Errors are handled in errors.py", False),
        ("x" * 5000 + "exit code 1" + "x" * 5000, False),
        ("", False),
    ],
)
def test_a_failure_is_known_by_what_the_result_says_of_itself(result, fails):
    assert bool(read_turn(talk(TASK, action(result))).failures) is fails


def test_the_same_failure_twice_is_a_boundary_and_then_the_fourth():
    failed = [action(f"Exit code 1\nline {n} at 0x{n}", number=n) for n in range(5)]
    found = [moment(talk(TASK, *failed[: n + 1])).boundary for n in range(5)]
    same = Boundary.SAME_FAILURE
    assert found == [None, same, None, same, None]
    told = moment(talk(TASK, *failed[:2])).reason
    assert told == "Bash failed in the same way 2 times"
    others = [action(f"Error: {word}") for word in ("this", "that")]
    assert moment(talk(TASK, *others)).boundary is None
    # what failed before the user spoke again is over
    again = talk(TASK, failed[0], assistant_message("."), user_message("Again"), failed[1])
    assert moment(again).boundary is None


def test_codex_s_own_lines_before_a_result_make_no_difference():
    def framed(n, result):
        return f"Chunk ID: {'abcdef'[n]}{n}d\nWall time: {n}.{n} seconds\n{result}"

    failed = [action(framed(n, "Process exited with code 1\nwrong sum")) for n in range(2)]
    assert moment(talk(TASK, *failed)).boundary is Boundary.SAME_FAILURE
    others = [action(framed(n, f"Process exited with code 1\n{'xy'[n]}")) for n in range(2)]
    assert moment(talk(TASK, *others)).boundary is None
    same = [action(framed(n, "Process exited with code 0\n"), number=1) for n in range(3)]
    assert moment(talk(TASK, *same)).boundary is Boundary.STALL


def test_doing_the_same_three_times_is_a_stall_and_so_is_looking_for_ever():
    def looks(n):
        return action(f"page {n}", "Read", f'{{"n":{n}}}')

    assert moment(talk(TASK, *[looks(1)] * 2)).boundary is None
    assert moment(talk(TASK, *[looks(1)] * 3)).boundary is Boundary.STALL
    rules = SessionRules(stall_actions=5)
    found = [moment(talk(TASK, *map(looks, range(n))), rules=rules).boundary for n in range(1, 12)]
    assert [n for n, one in enumerate(found, 1) if one is Boundary.STALL] == [5, 10]
    edits = [action("ok", "Bash", f'{{"n":{n}}}') for n in range(11)]
    assert moment(talk(TASK, *edits), rules=rules).boundary is None


@pytest.mark.parametrize(
    ("thread", "tokens", "boundary", "reason"),
    [
        (None, 100, Boundary.BEGINNING, "no worker has acted"),
        (SessionThread(acting=WorkerId("gone")), 100, Boundary.BEGINNING, "gone, which acted"),
        (BEGUN, 200_000, Boundary.BEGINNING, "about 200,000 tokens do not fit in the 100,000"),
        (SessionThread(acting=A, tokens=90_000), 20_000, Boundary.COMPACTION, "90,000 to 20,000"),
        (SessionThread(acting=A, tokens=90_000), 80_000, None, "1 tool result arrived"),
    ],
)
def test_where_nobody_can_go_on_it_is_decided_anew(thread, tokens, boundary, reason):
    found = moment(talk(TASK, action()), thread, tokens=tokens)
    assert found.boundary is boundary and reason in found.reason


@given(st.text(max_size=40), st.text(max_size=40))
def test_nothing_but_the_users_own_words_can_set_a_task(said, result):
    question = talk(TASK, (assistant_message(said),), action(result))
    assert moment(question).boundary is not Boundary.TASK
    reminded = talk(TASK, action(), user_message(f"<system-reminder>{said}</system-reminder>"))
    if "</system-reminder>" not in said:
        assert moment(reminded).boundary is None


def test_words_are_read_in_time_that_grows_with_the_text_alone():
    hostile = "<system-reminder>" * 50_000
    assert user_words(user_message(hostile + "x")) == (hostile + "x")
    closed = "<system-reminder>x</system-reminder>" * 50_000
    assert user_words(user_message(f"{closed} do it {closed}")) == "do it"


def test_a_turn_and_a_thread_keep_their_keys_while_tools_are_called():
    def keys(question):
        turn = read_turn(question)
        return turn.key, turn.thread_key

    begun, going = talk(TASK), talk(TASK, action(), action("Error: x"))
    assert keys(begun) == keys(going)
    again = talk(TASK, action(), assistant_message("Done."), TASK)
    assert keys(again)[1] == keys(begun)[1] and keys(again)[0] != keys(begun)[0]
    assert keys(talk(user_message("Other")))[1] != keys(begun)[1]


@given(
    tokens=st.integers(0, 300_000),
    held=st.integers(0, 300_000),
    age=st.floats(0, 1000),
    cached=st.none() | st.integers(0, 10),
    failures=st.integers(0, 5),
)
def test_a_switch_costs_what_is_cold_and_pays_only_above_cost_and_margin(
    tokens, held, age, cached, failures
):
    price = Price(input=Decimal(10), output=Decimal(1), cached=None if cached is None else cached)
    other = Worker(id=B, model="b", price=price, strength=0.6)
    thread = SessionThread(acting=A, warm={B: WarmPrefix(held, 0.0)})
    switch = price_switch(
        thread, POOL[A], other, tokens=tokens, failures=failures, now=age, rules=RULES
    )
    cold = max(0, tokens - (held if age <= RULES.warm_seconds else 0))
    each = Decimal(0) if cached is None else Decimal(10 - cached)
    assert switch.cost_usd == cold * each / 1_000_000
    assert switch.pays == (switch.gain_usd > RULES.margin_usd + switch.cost_usd)
    assert ("stayed with a" in switch.reason) is not switch.pays
    stay = price_switch(thread, other, other, tokens=tokens, failures=9, now=age, rules=RULES)
    assert not stay.pays


ENTRIES = st.builds(
    lambda thread, turn, usd, calls: SessionEntry(
        thread=thread,
        after=SessionThread(turn=turn),
        cost=Cost(Decimal(usd), calls),
        consultations=1,
    ),
    st.sampled_from([*(f"t{n}" for n in range(MOST_THREADS + 3)), ""]),
    st.sampled_from("abc"),
    st.integers(0, 9),
    st.integers(0, 2),
)


@given(st.lists(ENTRIES, max_size=40))
def test_a_ledger_adds_up_and_a_state_stays_bounded(entries):
    state = NEW_SESSION
    for entry in entries:
        state = state.with_entry(entry)
    assert state.cost.usd == sum(entry.cost.usd for entry in entries)
    assert state.consultations == len(entries) and len(state.threads) <= MOST_THREADS
    assert state.turns <= sum(1 for entry in entries if entry.thread)


@given(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=60))
def test_failures_of_a_task_are_all_counted_and_few_are_told_apart(tools):
    failed = [action(f"Error: {tool}", tool, number=n) for n, tool in enumerate(tools)]
    turn = read_turn(talk(TASK, *failed))
    known = SessionThread(acting=A).in_turn(turn)
    assert sum(known.failures.values()) == len(tools)
    assert len(known.failures) <= MOST_FAILURES + 1
    summed = replace(known, compacted=True).after_summary(read_turn(talk(user_message("So far"))))
    assert summed.failures == known.failures
    later = replace(summed, compacted=False).in_turn(read_turn(talk(user_message("New task"))))
    assert not later.failures


def test_two_tools_that_fail_in_the_same_words_have_failed_twice():
    failed = [action("Error: timeout", tool, number=n) for n, tool in enumerate("ab")]
    thread = SessionThread(acting=A).in_turn(read_turn(talk(TASK, *failed)))
    assert sum(thread.failures.values()) == 2


def test_a_session_of_5000_actions_stays_as_small_as_one_of_50():
    def size(actions):
        state, thread = NEW_SESSION, SessionThread(acting=A, turn="t")
        for number in range(actions):
            thread = thread.with_prompt(WorkerId(f"w{number % 30}"), number, float(number))
            state = state.with_entry(SessionEntry(thread="t", after=thread))
        assert len(state.threads["t"].warm) == MOST_WARM and state.turns == 1
        return len(str(asdict(state)))

    assert size(5000) < size(50) + 200


def test_of_5000_actions_the_newest_are_looked_at_and_the_ends_of_their_results():
    long = "x" * 100_000
    actions = [action(f"{number} {long}", arguments=f'{{"n":{number}}}') for number in range(5000)]
    turn = read_turn(talk(TASK, *actions))
    assert len(turn.actions) == MOST_ACTIONS and turn.words == "Mend it"
    assert turn.actions[-1].results[0].content.startswith("4999 ")
    assert moment(talk(TASK, *actions)).boundary is None


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-opus-5-5", "anthropic"),
        ("anthropic/claude-x", "anthropic"),
        ("gpt-5.2", "openai"),
        ("o4-mini", "openai"),
        ("openai/gpt-oss-120b", "openai"),
        ("gemini-3-pro", "google"),
        ("qwen3-coder", "qwen"),
        ("42", "42"),
    ],
)
def test_the_family_of_a_model_is_read_from_its_name(model, family):
    assert model_family(Worker(id=A, model=model)) == family


def test_a_reviewer_is_of_another_family_if_there_is_one():
    def found(*models, forbidden=()):
        workers = (
            Worker(id=WorkerId(f"w{n}"), model=model, strength=0.9 - n / 10)
            for n, model in enumerate(models)
        )
        context = PlanningContext(
            question=talk(TASK), pool=Pool(tuple(workers)), forbidden=forbidden
        )
        reviewer = find_reviewer(WorkerId("w0"), context)
        return reviewer and reviewer.id

    assert found("claude-a", "claude-b", "gpt-c") == "w2"
    assert found("claude-a", "claude-b") == "w1"
    assert found("claude-a") is None
    assert found("claude-a", "gpt-b", "gemini-c", forbidden={"w1"}) == "w2"


@pytest.mark.parametrize(
    ("text", "redo", "reasons"),
    [
        ("ACCEPT", False, ""),
        ("REDO: run the tests.", True, "run the tests"),
        ("**REDO**\nNo.", True, "No"),
        ("I would say REDO", False, ""),
        ("ACCEPTED", False, ""),
        ("The answer says: REDO", False, ""),
        ("", False, ""),
    ],
)
def test_a_verdict_is_the_first_word_and_nothing_else(text, redo, reasons):
    verdict = read_verdict(B, text)
    assert verdict.redo is redo and (verdict.reasons == reasons or not redo)


def test_texts_without_words_are_nobodys_turn():
    picture = Message(role=Role.USER, parts=(Text(""),))
    turn = read_turn(Question(messages=(picture,)))
    assert turn.words == "" and turn.is_fresh and not turn.says_to_go_on
