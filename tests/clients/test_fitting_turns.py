"""Calls and results in the form that a provider takes: a conversation that has it stays as it is."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.tool_turns import ANY_ID, CLAUDE_IDS, MISTRAL_IDS, fit_tool_turns
from batuta.core import Message, Role, Text, ToolCall, ToolResult, assistant_message, user_message

IDS = st.sampled_from(["a", "b", "c", "call.1", "123456789"])
CALLS = st.lists(IDS, max_size=3).map(lambda ids: called(*ids))


def called(*ids):
    parts = (Text("."), *(ToolCall(id=one, name="look", arguments="{}") for one in ids))
    return Message(role=Role.ASSISTANT, parts=parts)


def result(*ids):
    parts = tuple(ToolResult(call_id=one, content=f"of {one}") for one in ids)
    return Message(role=Role.TOOL, parts=parts)


RESULTS = st.lists(IDS, min_size=1, max_size=2).map(lambda ids: result(*ids))
TURNS = st.lists(st.one_of(CALLS, RESULTS, st.just(user_message("on"))), max_size=8)
RULES = st.sampled_from([ANY_ID, CLAUDE_IDS, MISTRAL_IDS])
ODD = result("of nobody")
"""A result that is looked at: what comes before it is then fitted message by message."""


@given(turns=TURNS, rule=RULES)
def test_what_is_left_alone_is_what_fitting_each_message_would_give(turns, rule):
    fitted = fit_tool_turns(turns, rule)
    assert fit_tool_turns([*turns, ODD], rule) == (*fitted, ODD)
    assert fit_tool_turns(fitted, rule) == fitted


@given(turns=TURNS, rule=RULES)
def test_calls_have_ids_that_are_taken_and_differ_and_results_are_alone(turns, rule):
    fitted = fit_tool_turns(turns, rule)
    ids = [part.id for said in fitted for part in said.parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == len(ids) and all(rule.pattern.fullmatch(one) for one in ids)
    assert all(len(said.parts) == 1 for said in fitted if said.role is Role.TOOL)


def test_results_are_put_in_their_calls_order():
    call = Message(
        role=Role.ASSISTANT,
        parts=tuple(ToolCall(id=one, name="look", arguments="{}") for one in "abc"),
    )
    turns = (user_message("hi"), call, result("c"), result("a"), assistant_message("."))
    fitted = fit_tool_turns(turns, ANY_ID)
    assert [said for said in fitted if said.role is Role.TOOL] == [result("a"), result("c")]
    in_order = (user_message("hi"), call, result("a"), result("c"), assistant_message("."))
    assert fit_tool_turns(in_order, ANY_ID) == in_order == fitted


@given(ids=st.lists(IDS, max_size=5), rule=RULES)
def test_calls_of_one_turn_with_one_id_have_a_result_each(ids, rule):
    answers = [
        Message(role=Role.TOOL, parts=(ToolResult(call_id=one, content=str(number)),))
        for number, one in enumerate(ids)
    ]
    call, *fitted = fit_tool_turns([called(*ids), *answers], rule)
    made = [part.id for part in call.parts if isinstance(part, ToolCall)]
    assert len(set(made)) == len(ids)
    told = [part for said in fitted for part in said.parts if isinstance(part, ToolResult)]
    assert {part.call_id for part in told} == set(made)
    for one in set(ids):  # what has one id is answered in order
        places = [at for at, name in enumerate(ids) if name == one]
        by_place = {int(part.content): part.call_id for part in told}
        assert [by_place[at] for at in places] == [made[at] for at in places]


def test_a_long_session_is_fitted_in_a_time_that_its_length_costs():
    def session(actions):
        said = [user_message("hi")]
        for number in range(actions):
            made = ToolCall(id=f"c{number}", name="look", arguments="{}")
            said += [Message(role=Role.ASSISTANT, parts=(made,)), result(made.id)]
        return said

    def seconds(said):
        begun = time.process_time()
        for _ in range(3):
            assert fit_tool_turns(said, CLAUDE_IDS) == tuple(said)
        return time.process_time() - begun

    short, long = session(500), session(10_000)
    assert seconds(long) < 20 * 8 * max(seconds(short), 0.001)


def test_many_calls_of_one_id_are_fitted_in_a_time_that_their_number_costs():
    call = ToolCall(id="x", name="look", arguments="{}")
    begun = time.process_time()
    fitted = fit_tool_turns([Message(role=Role.ASSISTANT, parts=(call,))] * 1_500, CLAUDE_IDS)
    assert time.process_time() - begun < 1
    ids = {part.id for turn in fitted for part in turn.parts if isinstance(part, ToolCall)}
    assert len(ids) == 1_500
