"""Answers that mean the same have one form; those that differ keep theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.lab.tasks.graders.answer_form import canonical_answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("**C**", "(c)"),
        ("1,200", "1200.0"),
        ("[1, 2, 3]", "1,2,3"),
        (r"$\boxed{\frac{1}{4}}$", "1/4"),
        ("- (1/4)*cos(18*x + 20) + C", "-(1/4)*cos(18*x+20)+C"),
        ("x**2 + 1", "x^2+1"),
        ("Paris.", "paris"),
        ("３", "3"),
        ("3 : 4", "3:4"),
        ("−5", "-5"),
        (".5", "0.50"),
        ("-.5", "-0.5"),
        ("12\u202f000", "12,000"),
        ("12\u00a0000\u00a0345", "12000345"),
        (r"\boxed{12{,}000}", "12000"),
        ("3×10⁸", "3×10^{8}"),
        ("x²", "x**2"),
        ("2⁻¹", "2^{-1}"),
    ],
)
def test_the_dress_of_an_answer_does_not_count(one, other):
    assert canonical_answer(one) == canonical_answer(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (".5", "5"),
        ("−3", "3"),
        ("-3", "3"),
        ("1 2", "12"),
        ("1.05", "1.5"),
        ("1,2,3", "123"),
        ("(1)(2)", "12"),
        ("10⁶", "106"),
        ("5²", "52"),
    ],
)
def test_other_answers_have_another_form(one, other):
    assert canonical_answer(one) != canonical_answer(other)


@pytest.mark.parametrize("nothing", ["", "  ", "nan", "NaN", "**", "n/a", r"\boxed{}"])
def test_what_says_nothing_is_no_answer(nothing):
    assert canonical_answer(nothing) == ""


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_form_is_its_own_form(text):
    assert canonical_answer(canonical_answer(text)) == canonical_answer(text)
