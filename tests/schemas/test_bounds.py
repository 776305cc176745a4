"""Schemas are bounded in time linear in their size, before anything is compiled."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.schemas import JsonValidator, bounds, measure_json, measure_schema
from schemas.hostile import branching, nested

SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def chain(length):
    links = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    return {"$defs": {**links, f"d{length}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (nested(7), "references are followed"),
        (nested(7, keyword="anyOf"), "references are followed"),
        ({"properties": {f"p{at}": {} for at in range(10_000)}}, "properties"),
        ({"title": "x" * 200_000}, "characters"),
        ({"enum": ["x" * 100_000, "y" * 100_000]}, "characters"),
        ({"enum": list(range(20_000))}, "values"),
        (deep(100), "levels"),
        (chain(500), "levels of subschemas"),
        ({"$defs": {f"d{at}": {"$ref": "#"} for at in range(1_100)}}, "references"),
        ({"anyOf": [{}] * 2_100}, "branches"),
        ({"pattern": "a" * 1_100}, "pattern"),
        ({"patternProperties": {"a" * 1_100: {}}}, "pattern"),
        ({"properties": {f"p{at}": {"pattern": "a"} for at in range(150)}}, "patterns"),
    ],
)
def test_a_schema_that_is_too_large_is_refused_at_once(schema, what):
    began = time.thread_time()
    with pytest.raises(ValueError, match=what):
        JsonValidator(schema)
    assert time.thread_time() - began < 2


def test_what_a_schema_amounts_to():
    # The root; then at each of two levels the place and its list, and three references of it.
    assert measure_schema(nested(2, 3)).expanded == 1 + (4 + 3 * (1 + 4 + 3 * (1 + 1)))
    size = measure_schema(SMALL)
    assert (size.expanded, size.chain, size.is_linear) == (3, 2, True)
    assert not measure_schema(branching()).is_linear
    assert not measure_schema({"pattern": "a"}).is_linear
    assert not measure_schema({"$ref": "https://elsewhere.example/"}).is_linear
    assert not measure_schema({"$ref": "#/nowhere"}).is_linear
    assert measure_schema({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}).is_linear


def test_references_by_pointer_anchor_and_root_are_followed():
    heavy = {"anyOf": [{"type": "string"}] * 50}
    for reference, extra in (("#/$defs/h", {}), ("#name", {"$anchor": "name"})):
        schema = {"$defs": {"h": {**heavy, **extra}}, "anyOf": [{"$ref": reference}] * 10}
        assert measure_schema(schema).expanded > 500
    assert measure_schema({"anyOf": [{"$ref": "#/anyOf/1"}, heavy]}).expanded > 200
    assert not measure_schema({"items": {"$ref": "#"}}).is_linear


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab#/", max_size=5) | st.sampled_from(["#", "#/a"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["$ref", "$defs", "properties", "items", "anyOf", "not", "a", "pattern", "$anchor"]),
        inner,
        max_size=4,
    ),
    max_leaves=30,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["$ref", "$defs", "properties", "anyOf", "a", "if"]), JSON))
def test_any_json_is_measured_or_refused(schema):
    try:
        size = measure_schema(schema)
    except ValueError:
        return
    assert size.values >= 1 and 1 <= size.expanded <= bounds.MAX_EXPANDED


@pytest.mark.parametrize("keyword", ["allOf", "items", "dependentSchemas", "$defs", "not"])
def test_measuring_costs_what_the_length_costs(keyword):
    inner = {"not": {"not": {}}}
    value = {str(at): inner for at in range(3_000)}
    schema = {keyword: value if keyword in {"dependentSchemas", "$defs"} else list(value.values())}
    began = time.thread_time()
    try:
        measure_schema(json.loads(json.dumps(schema)))
    except ValueError as error:
        assert "branches" in str(error)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("keyword", ["description", "pattern", "$ref", "$comment"])
def test_a_text_counts_once(keyword):
    half = "a" * (bounds.MAX_CHARACTERS // 2 + 1)
    if keyword != "pattern":
        assert measure_schema({keyword: half}).values == 2
    assert measure_schema({"enum": [half]}).values == 3
    with pytest.raises(ValueError, match="characters"):
        measure_schema({keyword: 2 * half})


def test_json_is_counted():
    assert measure_json({"a": [1, {"b": 2}]}, values=10, depth=4) == 5
    with pytest.raises(ValueError, match="levels"):
        measure_json([[[[1]]]], values=10, depth=3)
    with pytest.raises(ValueError, match="values"):
        measure_json([1] * 11, values=10, depth=3)
