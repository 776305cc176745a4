"""Which model a name stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batuta.config.aliases import DEFAULT_ALIASES, LONGEST_NAME, Aliases

NAMES = st.text("abc-[]1m", min_size=1, max_size=12)


def test_names_that_the_coding_agents_send():
    found = Aliases().find
    big = ("claude-opus-4-8", "claude-opus-4-8[1m]", "claude-sonnet-5", "sonnet", "gpt-5.3-codex",
           "gpt-5", "codex-max-2")  # fmt: skip
    small = ("claude-haiku-4-5-20251001", "claude-3-5-haiku-latest", "haiku", "gpt-5-mini",
             "gpt-4.1-nano", "gpt-5.1-codex-mini", "codex-mini-latest")  # fmt: skip
    assert {name: found(name) for name in big} == dict.fromkeys(big, "batuta-ultra")
    assert {name: found(name) for name in small} == dict.fromkeys(small, "batuta-mini")
    for name in ("gemini-3-pro", "text-embedding-3-small", "omni-moderation-latest", "x" * 300):
        assert found(name) is None, name


def test_an_exact_name_then_the_longest_pattern_then_the_defaults():
    aliases = Aliases({"claude-*": "a", "claude-opus-*": "b", "claude-opus-5": "c", "?": "d"})
    found = aliases.find
    assert found("claude-opus-5") == "c"
    assert found("claude-opus-6") == "b"
    assert found("claude-haiku-4") == "a"  # what is configured goes before any default
    assert found("x") == "d"
    assert found("gpt-5-mini") == "batuta-mini"


def test_brackets_are_themselves():
    aliases = Aliases({"mine-*[1m]": "a"})
    assert aliases.find("mine-9[1m]") == "a"
    assert aliases.find("mine-91") is None


@given(name=NAMES, table=st.dictionaries(NAMES, st.sampled_from("xyz"), max_size=5))
def test_a_name_without_wildcards_stands_for_its_own_entry_alone(name, table):
    assert Aliases(table).find(name) == table.get(name, Aliases().find(name))


@given(name=NAMES, data=st.data())
def test_of_two_patterns_that_fit_the_longer_decides(name, data):
    cut = data.draw(st.integers(1, len(name)))
    shorter = data.draw(st.integers(0, cut - 1))
    table = {name[:shorter] + "*": "short", name[:cut] + "*": "long"}
    assert Aliases(table).find(name) == "long"
    assert Aliases(dict(reversed(table.items()))).find(name) == "long"


def test_a_long_name_costs_nothing():
    assert Aliases({"*a*a*a*a*a*a*a*b": "x"}).find("a" * LONGEST_NAME) is None
    assert Aliases({"*": "x"}).find("a" * (LONGEST_NAME + 1)) is None


def test_defaults_name_no_model_of_an_embedding():
    assert all("embed" not in alias for alias in DEFAULT_ALIASES)
