"""The exact grader: what is a mark around an answer and what is a part of it."""

import pytest

from batuta.lab.tasks.graders import ExactGrader, FreeFormGrader, IntegerGrader, MathsGrader
from batuta.lab.tasks.plain_numbers import read_plain_number
from batuta.lab.tasks.recorded.outcome_lines import stated_answer

pytestmark = pytest.mark.anyio

RIGHT = (
    (".5", "0.5"),
    ("Answer: .5", "0.5"),
    ("-.5", "-0.5"),
    ("5.", "5"),
    ("The answer is 5.", "5"),
    ("**5**", "5"),
    ("**Answer:** 5", "5"),
    ("**Answer: 5**", "5"),
    ("**Answer:**5", "5"),
    ("Answer: **5**", "5"),
    ("Answer:\n\n**5**", "5"),
    ("`5`", "5"),
    ("$5$", "5"),
    ("$5", "5"),
    ("$$5$$", "5"),
    ("*args", "*args"),
    ("Answer: *args", "*args"),
    ("Answer: `*args`", "*args"),
    ("Answer: _x", "_x"),
    ("__init__", "__init__"),
    ("Answer: __init__", "__init__"),
    ("Answer: `__init__`", "__init__"),
    ("Answer: $HOME", "$HOME"),
    ("etc.", "etc"),
    ("etc", "etc."),
    ("..", ".."),
    ("*", "*"),
    ("Answer: *", "*"),
    ("Answer: $", "$"),
    ("391", "391.0"),
    ("391.0", "391"),
    ("1,234", "1234"),
    ("1234", "1,234"),
    ("1 234", "1234"),
    ("−5", "-5"),
    ("$5.00", "$5"),
    ("$1234", "$1,234"),
    ("-5", "−5"),
    ("１２３", "123"),
    ("123", "１２３"),
    ("(1, 234)", "(1,234)"),
    ("007", "007"),
    ("[1.0, 2]", "[1, 2]"),
    ("Paris.", "Paris"),
    ("PARIS", "Paris"),
    ("> Paris", "Paris"),
    ("# Paris", "Paris"),
    ("- Paris", "Paris"),
    ("<answer>**5**</answer>", "5"),
    ("\\boxed{5}", "5"),
    ("#### 5", "5"),
    ("The final answer is **Bücher**.", "Bücher"),
    ("'a.'", "'a.'"),
    ("'a'.", "'a'"),
    ("Answer: 'a_b'", "'a_b'"),
    ("Answer: a_b_c", "a_b_c"),
    ("Answer: 2**3", "2**3"),
    ("Answer: 2*3*4", "2*3*4"),
    ("Answer: 1e3", "1000"),
    ("Reasoning.\n\nAnswer: **Yes**", "yes"),
    ("**Answer: *Yes***", "yes"),
    ("Answer: C#", "C#"),
    ("Answer: `x`.", "x"),
    ("Answer: **x**.", "x"),
    ("Answer: $-5$.", "-5"),
    ("Answer: -$5.", "-5"),
    ("Answer: ***valid***", "valid"),
    ("Answer: 0xFF", "0xff"),
    (f"Answer: {'9' * 5000}", "9" * 5000),
    ("<answer>\n1  2\n\n3 4 \n</answer>", "1 2\n3 4"),
)
WRONG = (
    ("5", "$5"),
    ("€5", "$5"),
    ("$5", "$.5"),
    (".5", "5"),
    ("Answer: .5", "5"),
    ("*args", "args"),
    ("Answer: *args", "args"),
    ("_x", "x"),
    ("Answer: _x", "x"),
    ("$HOME", "HOME"),
    ("...", ".."),
    ("*", "$"),
    ("_", "."),
    (".", "*"),
    ("Answer: .", "*"),
    ("391.5", "391"),
    ("007", "7"),
    ("7", "007"),
    ("[True]", "[1]"),
    ("1.0e400", "1e401"),
    ("12345678901234567890123", "12345678901234567890124"),
    ("12345678901234567890.0", "12345678901234567891.0"),
    ("<answer>.5</answer>", "5"),
    ("\\boxed{.5}", "5"),
    ("#### .5", "5"),
    ("Answer: 234", "2*3*4"),
    ("5%", "5"),
    ("50%", "0.5"),
    ("½", "1"),
    ("10²", "102"),
    ("x²", "x2"),
    ('Answer: "abc"', "abc"),
    ("Answer: abc", '"abc"'),
    ("Answer: C", "C#"),
    ("Answer: a#", "a"),
    ("Answer: $-5.", "-5"),
    ("Answer: 255", "0xff"),
    ("Answer: 5", "0b101"),
    ("Answer: $1", "1$"),
    (f"Answer: {'9' * 5000}", "9" * 4999 + "8"),
    ("<answer>0 0\n0 0\n0 0</answer>", "0 0 0\n0 0 0"),
    ("<answer>0 0\n0 0</answer>", "0 0"),
)


@pytest.mark.parametrize(("answer", "target"), RIGHT)
async def test_marks_around_an_answer_and_spellings_of_a_number_do_not_count(answer, target):
    grade = await ExactGrader().grade(answer, target)
    assert grade.score == 1, grade


@pytest.mark.parametrize(("answer", "target"), WRONG)
async def test_a_sign_that_belongs_to_the_answer_counts(answer, target):
    grade = await ExactGrader().grade(answer, target)
    assert grade.score == 0, grade


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "1,2",
        "1,23",
        "1 23",
        "1,234 567",
        "007",
        "1e",
        "½",
        "10²",
        "1/2",
        "--5",
        "5-",
        "1.2.3",
        "0x1f",
        "9" * 1001,
        "1e99999",
    ],
)
def test_what_is_no_plain_number_is_none(text):
    assert read_plain_number(text) is None


@pytest.mark.parametrize(("reply", "answer"), [("Answer: .5", ".5"), ("Answer: (5).", "5")])
def test_an_answer_that_is_read_for_a_record_keeps_its_point(reply, answer):
    assert stated_answer(reply) == answer


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        (".5", "5"),
        ("**.5**", "5"),
        ("\\boxed{.5}", "5"),
        ("(.5)", "5"),
        (".5 kg", "5 kg"),
        ("$.5", "5"),
        (".5%", "5%"),
        ("-.5", "5"),
        ("-.5", ".5"),
        ("–5", "5"),
        ("-x", "x"),
        ("-π", "π"),
        ("√5", "5"),
        ("2⁵", "25"),
        ("10⁻⁵", "105"),
        ("5‰", "5"),
        ("It is √5.", "5"),
        ("It is 5².", "5"),
        ("|x|", "x"),
        ("A ∩ B", "A ∪ B"),
        ("p ∨ q", "p ∧ q"),
        ("Answer: 12 ❌", "12"),
        ("The answer is **12** 👎.", "12"),
        ("12 ✗", "12"),
        ("Answer: 12 ⚠️", "12"),
    ],
)
async def test_no_grader_reads_past_a_mark_that_changes_what_is_meant(pool, answer, target):
    for grader in (FreeFormGrader(pool), MathsGrader(pool), ExactGrader(), IntegerGrader()):
        assert (await grader.grade(answer, target)).score != 1, grader


@pytest.mark.parametrize(
    "answer",
    ["12 (wrong)", "Answer: 12 [incorrect].", "**12** (wrong!)", "The answer is 12. That is wrong.",
     "12, that's wrong", "12 is not the answer", "12 is false.", "The answer is not 12", "It isn't **12**.",
     "It is not equal to $12"],
)  # fmt: skip
async def test_an_integer_that_is_denied_in_words_is_no_answer(answer):
    assert (await IntegerGrader().grade(answer, "12")).score == 0


@pytest.mark.parametrize(
    "answer",
    ["There were 12 wrong answers", "12 wrong", "Not counting Sunday, the answer is 12", "12 (correct)",
     "It is not 7. The answer is 12", "12 is not divisible by 5, so the answer is 12",
     "It is not 7, so x = 12", "12, not 13", "12 is right, 13 is wrong"],
)  # fmt: skip
async def test_a_word_that_denies_something_else_leaves_an_integer_as_it_is(answer):
    assert (await IntegerGrader().grade(answer, "12")).score == 1


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        (".5", "0.5"),
        ("The answer is .5", "half"),
        (".5 kg", "0.5 kg"),
        ("−.5", "-0.5"),
        ("10⁻⁵", "10^-5"),
        ("5 m²", "5 m2"),
        ("Ca²⁺", "Ca2+"),
        ("- Paris", "Paris"),
        ("→ Paris", "Paris"),
        ("... Paris", "Paris"),
        ("co–op", "co-op"),
        ("1990–1995", "1990-1995"),
        ("Spider Man", "Spider-Man"),
        ("A∪B", "A ∪ B"),
    ],
)
async def test_a_mark_that_changes_nothing_does_not_count_in_short_answers(pool, answer, target):
    assert (await FreeFormGrader(pool).grade(answer, target)).score == 1
