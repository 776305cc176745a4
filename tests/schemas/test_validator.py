"""Texts are checked here where that is quick, else in a process that is killed in time."""

import json
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.offload import ProcessTimeoutError
from batuta.schemas import JsonValidator, SchemaTimeoutError, validator_for
from batuta.schemas.checker import find_text_fault
from schemas.hostile import branching, nested, towers

SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_small_schemas_are_checked_here():
    validator = JsonValidator(SMALL)
    await validator.check()
    assert validator.is_quick('{"n": 1}')
    assert await validator.find_fault('{"n": 1}') is None
    assert await validator.find_fault('{"n": "1"}') == '$.n: "1" is not of type "integer"'
    assert "not JSON" in (await validator.find_fault("n=1") or "")
    assert validator.find_fault_now('{"n": 2}') is None


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"patternProperties": {"a": {}}},
        {"uniqueItems": True},
        {"unevaluatedProperties": False},
        branching(),
        nested(4),
    ],
)
def test_what_may_be_slow_is_checked_elsewhere(schema):
    assert not JsonValidator(schema).is_quick(json.dumps([{"a": "b"}] * 50))


async def test_what_is_checked_elsewhere_is_checked_alike():
    validator = JsonValidator({"properties": {"a": {"pattern": "^x+$"}}})
    await validator.check()
    assert await validator.find_fault('{"a": "xx"}') is None
    assert "$.a" in (await validator.find_fault('{"a": "y"}') or "")
    assert "not JSON" in (await JsonValidator(SMALL).find_fault("x" * 30_000) or "")
    assert "object" in (
        await JsonValidator(None, is_object=True).find_fault(" " * 30_000 + "1") or ""
    )


@pytest.mark.parametrize("schema", [{"type": "odd"}, {"pattern": "("}, {"$ref": "#/nowhere"}, {"$ref": "file:///etc/passwd"}])  # fmt: skip
async def test_what_is_no_schema_is_told(schema):
    with pytest.raises(ValueError):
        await JsonValidator(schema).check()


async def test_a_check_without_end_ends_and_is_not_begun_again():
    """On the version before: no end, and nothing else was served meanwhile."""
    validator = JsonValidator(branching(9))
    await validator.check()
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    began = time.thread_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with pytest.raises(SchemaTimeoutError):
            await validator.find_fault(towers())
        tasks.cancel_scope.cancel()
    assert ticks > 10
    again = time.perf_counter()
    with pytest.raises(SchemaTimeoutError, match="before"):
        await JsonValidator(branching(9)).find_fault(towers())
    assert time.perf_counter() - again < 5
    assert time.thread_time() - began < 4


@pytest.mark.parametrize("schema", [{"type": "array"}, {"items": {"$ref": "#"}}, {}])
async def test_deep_values_end_nothing(schema):
    for text in ("[" * 5_000 + "]" * 5_000, "[" * 150 + "]" * 150, "[" * 200_000):
        await JsonValidator(schema).find_fault(text)
    assert await JsonValidator(SMALL).find_fault('{"n": 1}') is None


async def test_a_slow_text_without_a_schema_refuses_no_other():
    with pytest.raises(SchemaTimeoutError, match="this text"), validator_for(None)._refusing_slow():
        raise ProcessTimeoutError("the call took too long")
    assert await validator_for(None).find_fault(json.dumps([1] * 20_000)) is None


def test_a_validator_is_made_once_for_a_schema():
    schema = {"type": "string"}
    assert validator_for(schema) is validator_for(schema)
    assert validator_for({}) is validator_for(None)
    for at in range(100):
        validator_for({"title": str(at)})


PLAIN = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"const": 1}, {"enum": [1, "a", None]}, {"minLength": 3}, {"$ref": "#/$defs/d"}]),
    lambda inner: st.one_of(
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, min_size=1, max_size=6)),
        st.builds(lambda found: {"oneOf": found}, st.lists(inner, min_size=1, max_size=6)),
        st.builds(lambda found: {"items": found}, inner),
        st.builds(lambda found: {"properties": found, "required": list(found)}, st.dictionaries(st.sampled_from("abc"), inner)),
        st.builds(lambda found: {"additionalProperties": found}, inner),
    ),
    max_leaves=40,
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "abcd"]),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=200,
)


@settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
@given(PLAIN, VALUES)
def test_what_counts_as_quick_is_quick(schema, value):
    schema = {**schema, "$defs": {"d": {"anyOf": [{"type": "null"}, {"items": {"const": 2}}]}}}
    text = json.dumps(value)
    if not JsonValidator(schema).is_quick(text):
        return
    began = time.thread_time()
    find_text_fault(schema, text)
    assert time.thread_time() - began < 1
