"""What holds for every text: a grade in [0, 1] or none, no exception, and what is equal is right."""

import asyncio
from fractions import Fraction
from string import ascii_uppercase

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batuta.lab.tasks.graders import (
    ChoiceGrader,
    ExactGrader,
    IntegerGrader,
    JsonSchemaGrader,
    forms,
)
from batuta.lab.tasks.graders.form_comparison import is_same_form
from batuta.lab.tasks.graders.freeform import compare_short_answers, find_short_answer
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.limits import limit_violation
from batuta.lab.tasks.graders.maths import compare_without_algebra, find_maths_answer
from batuta.lab.tasks.graders.numbers import is_same_number, parse_number

PIECES = r"""
\frac \sqrt \boxed{ \left( \right) \text{ \pm \cup \infty \le \begin{pmatrix} \end{pmatrix} \mathbb{R}
\emptyset \overline{ { } ( ) [ ] ^ _ , ; : = < > + - * / % & \\ \$ $ 0 1 2 10 3.5 x y A B i e pi sqrt(
and or answer is the not <answer> </answer> <think> </think> #### ½ ² √ π cm m/s kg 90^\circ . ! ' "
"""
TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from([*PIECES.split(), "\n"]), max_size=25).map(" ".join),
)


@given(TEXTS, TEXTS)
@settings(max_examples=4 * settings().max_examples, deadline=None)
@pytest.mark.parametrize(
    "grader",
    [
        ChoiceGrader(),
        ChoiceGrader(("yes", "no")),
        ExactGrader(),
        IntegerGrader(),
        JsonSchemaGrader({"type": "array"}),
    ],
)
def test_any_text_has_a_grade(grader, answer, target):
    grade = asyncio.run(grader.grade(answer, target))
    assert grade.score in {0.0, 1.0}
    assert grade.reason


@given(TEXTS, TEXTS)
@example("0^\\circ", "0^\\circ1^\\circ")
@settings(max_examples=5 * settings().max_examples, deadline=None)
def test_any_two_texts_can_be_compared(answer, target):
    found = find_maths_answer(answer)
    if found is not None and not limit_violation(found):
        assert compare_without_algebra(normalize_latex(target), normalize_latex(found)) in {
            True,
            False,
            None,
        }
        assert compare_short_answers(found, target) in {True, False, None}


@given(TEXTS)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_every_form_is_the_same_as_itself(text):
    form = forms.parse_form(normalize_latex(text))
    assert is_same_form(form, form, lambda target, answer: target == answer)


@given(st.integers(-(10**30), 10**30))
def test_integers_are_read_exactly(value):
    for text in (str(value), f"{value:,}", f"{value}.00", f"\\boxed{{{value}}}"):
        grade = asyncio.run(IntegerGrader().grade(text, str(value)))
        assert grade.score == 1, text
        other = asyncio.run(IntegerGrader().grade(text, str(value + 1)))
        assert other.score == 0, text


@given(st.fractions())
def test_fractions_are_read_in_every_form(value):
    above, below = value.as_integer_ratio()
    for text in (
        f"{above}/{below}",
        f"\\frac{{{above}}}{{{below}}}",
        f"\\dfrac{{{above}}}{{{below}}}",
    ):
        assert parse_number(normalize_latex(text)) == value
    whole, part = divmod(abs(value), 1)
    mixed = parse_number(
        normalize_latex(f"{whole}\\frac{{{part.numerator}}}{{{part.denominator}}}")
    )
    assert mixed == abs(value)


@given(st.fractions(min_value=0), st.fractions(min_value=0))
def test_numbers_are_equal_if_they_are_or_if_rounded(one, other):
    assert is_same_number(one, one)
    if is_same_number(one, other):
        assert abs(one - other) <= abs(one) / 10**6
        assert one == other or (other * 10**40).denominator != (one * 10**40).denominator


@given(st.fractions(min_value=0, max_value=10**6), st.integers(6, 12))
def test_decimals_count_from_six_right_digits_on(value, digits):
    scale = 10**digits
    rounded = Fraction(round(value * scale), scale)
    if value >= 1:
        assert is_same_number(value, rounded) or (value * 10**40).denominator == 1


@given(st.sampled_from(ascii_uppercase), st.sampled_from(ascii_uppercase))
def test_a_letter_is_read_and_two_are_not(one, other):
    forms = (
        "The answer is {}.",
        "Answer: ({})",
        "\\boxed{{{}}}",
        "<answer>{}</answer>",
        "{}",
        "**{}**",
    )
    for form in forms:
        assert ChoiceGrader().chosen_letter(form.format(one)) == one
    if one != other:
        for form in forms[:4]:
            assert ChoiceGrader().chosen_letter(form.format(f"{one} or {other}")) is None
        assert (
            ChoiceGrader().chosen_letter(f"The answer is {one}. No, the answer is {other}.")
            == other
        )
    assert ChoiceGrader().chosen_letter(f"The answer is not {one}.") is None


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("n", "no"),
        ("blue", "- red\n- blue"),
        ("0.01", "1/150"),
        ("Paris", "The capital is not Paris."),
        ("Paris", "Is the capital Paris?"),
        ("$5", "€5"),
        ("CO", "Co"),
        ("5 mW", "5 MW"),
        ("12-14", "-2"),
        ("4 July 1776", "7 April 1776"),
        ("5 km", "5 kg"),
        ("25 °C", "25 °F"),
        ("yes", "Yes or no."),
        ("red, green", "red, green, blue"),
    ],
)
def test_what_looks_like_the_target_is_not_accepted(target, found):
    assert not compare_short_answers(find_short_answer(found) or "", target)
