"""`decode_run(encode_run(run)) == run`, and what happens where JSON cannot follow."""

import time
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store import strategies
from tests.store.strategies import make_run

from batuta.core import Message, Question, Role, Text, Tool
from batuta.errors import StoreError
from batuta.store import FORMAT, decode_run, encode_run
from batuta.store.codec import clean_text
from batuta.store.rows import RunEntry, pack_run

slow = settings(
    deadline=None,
    max_examples=settings().max_examples * 60 // 100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@slow
@given(strategies.runs)
def test_every_run_comes_back(run):
    back = decode_run(encode_run(run))
    assert back == run
    assert repr(back) == repr(run)  # the types too: Decimal, tuple, enum, which part of a union


@slow
@given(strategies.any_texts, strategies.any_texts)
def test_any_string_at_all_is_encoded(question, answer):
    run = make_run(question=question, answer=answer)
    back = decode_run(encode_run(run))
    assert back.answer == clean_text(answer)
    assert back.header.question.text == clean_text(question)
    pack_run(RunEntry(run=run, tenant=answer, content=True)).row["question_preview"].encode()


@given(strategies.texts)
def test_valid_text_is_left_alone(text):
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "clean"),
    [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("\ud83d\ude00", "😀"), ("\0\x7f", "\0\x7f")],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text, clean):
    assert clean_text(text) == clean
    assert decode_run(encode_run(make_run(question=text))).header.question.text == clean


@given(st.integers(min_value=2**64))
def test_seeds_have_no_upper_bound(seed):
    run = make_run(seed=seed)
    assert decode_run(encode_run(run)) == run


def question_with(parameters):
    return Question(
        messages=(Message(role=Role.USER, parts=(Text("?"),)),),
        tools=(Tool(name="tool", description="", parameters=parameters),),
    )


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [10, 190, 210, 240, 300])
def test_deep_parameters_come_back(depth):
    header = replace(make_run().header, question=question_with(nested(depth)))
    run = replace(make_run(), header=header)
    assert decode_run(encode_run(run)) == run


def test_parameters_beyond_reason_cost_the_content_but_not_the_row():
    header = replace(make_run().header, question=question_with(nested(5000)))
    run = replace(make_run(), header=header)
    with pytest.raises(StoreError, match="too deeply"):
        encode_run(run)
    packed = pack_run(RunEntry(run=run, tenant="local", content=True))
    assert packed.body is None
    assert packed.row["usd"] == run.cost.usd


def test_what_json_does_not_know_becomes_what_it_knows():
    odd = {"proxy": MappingProxyType({"a": 1}), "pair": (1, 2), "set": {3}, "object": 1j, 5: 6}
    for extra in ({}, {"big": 2**70}):
        header = replace(make_run().header, question=question_with(odd | extra))
        tool = decode_run(encode_run(replace(make_run(), header=header))).header.question.tools[0]
        wanted = {"proxy": {"a": 1}, "pair": [1, 2], "set": [3], "object": "1j", "5": 6} | extra
        assert tool.parameters == wanted


def test_numbers_that_are_not_finite_become_null():
    for seed in (1, 2**70):
        run = make_run(seed=seed)
        limits = replace(run.header.limits)
        object.__setattr__(limits, "usd", float("inf"))  # as earlier versions allowed
        odd = replace(run.header, limits=limits)
        assert decode_run(encode_run(replace(run, header=odd))).header.limits.usd is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b'{"header":', b"[" * 5000])
def test_bytes_that_are_no_run_are_a_store_error(body):
    with pytest.raises(StoreError, match="cannot be read"):
        decode_run(body)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_run_or_a_store_error(body):
    with pytest.raises(StoreError):
        decode_run(body)


def test_a_later_format_is_refused():
    with pytest.raises(StoreError, match="upgrade Batuta"):
        decode_run(encode_run(make_run()), FORMAT + 1)


def test_encoding_is_fast():
    run = make_run(question="What is 6*7? " * 20)
    best = min(timed(encode_run, run) for _ in range(200))
    assert best < 200e-6  # about 15 µs; the bound leaves room for a loaded machine


def timed(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start
