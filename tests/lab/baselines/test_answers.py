"""The final answer in a reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Reply
from batuta.lab.baselines import (
    find_final_answer,
    find_stated_answer,
    majority_reply,
    normalize_answer,
)
from batuta.language import answer_extraction


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Step 1\nAnswer: 42", "42"),
        ("**Answer:** 42.", "42"),
        ("The answer is 42.", "42"),
        ("Answer: 1\nOn second thoughts:\nAnswer: 2\nThank you.", "2"),
        ("Final answer = blue", "blue"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("Answer: [1, 2, 3]", "[1, 2, 3]"),
        ("Answer: **.5**.", ".5"),
        ("I cannot answer this.", None),
        ("The answer cannot be known.", None),
        ("Answer:", None),
        ("", None),
    ],
)
def test_the_stated_answer(text, answer):
    assert find_stated_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [("Paris", "Paris"), ("It is\nParis.", "Paris"), ("Answer: 1\nBye", "1"), (" \n ", None)],
)
def test_the_final_answer_falls_back_to_the_last_line(text, answer):
    assert find_final_answer(text) == answer


@given(st.text())
def test_any_text_has_an_answer_or_none(text):
    answer = find_final_answer(text)
    assert answer is None or answer
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_the_majority_is_a_most_frequent_answer_given_first(said):
    winner = majority_reply([Reply(text=f"Answer: {word}") for word in said])
    most = max(said.count(word) for word in said)
    first = next(word for word in said if said.count(word) == most)
    assert winner == Reply(text=f"Answer: {first}")


def test_of_nothing_there_is_no_majority():
    assert majority_reply([]) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>Answer: 5</think>\nAnswer: 4\n<think>maybe Answer: 6", "4"),
        ("<think>Answer: 5", None),
        ("so <answer>7</answer>, as the answer is a prime", "7"),
        ("3 + 4 = 7\n#### 7", "7"),
        ("The answer is 42 \u2705", "42"),
        ("\\boxed{1} or \\boxed{2}", "1, 2"),
        ("It is 5, so \\boxed{5", None),
        ("<answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
    ],
)
def test_a_vote_reads_the_same_answer_as_the_graders(text, answer):
    assert find_stated_answer(text) == answer
    assert answer_extraction.final_answer(text) == answer
