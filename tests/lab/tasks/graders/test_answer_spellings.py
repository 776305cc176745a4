"""Numbers and words as models spell them: scales, gaps between thousands, hedges, text commands."""

import pytest

from batuta.core import Task, TaskId

pytestmark = pytest.mark.anyio


async def score(graders, grader, answer, target):
    task = Task(id=TaskId("t/1"), question="?", target=target, grader=grader)
    return (await graders.grade(task, answer)).score


SCALED = (
    r"\boxed{{3 \text{{ {}}}}}",
    r"\boxed{{\text{{3 {}s}}}}",
    r"\boxed{{\$3 \text{{ {} people}}}}",
    r"\boxed{{3 {}}}",
    "The answer is 3 {}.",
    "#### 3 {} euros",
)
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", SCALED)
@pytest.mark.parametrize("grader", ["math", "integer", "freeform"])
async def test_a_scale_behind_a_number_multiplies_it(graders, grader, form, scale):
    answer, zeros = form.format(scale), SCALES[scale]
    assert await score(graders, grader, answer, f"3{'0' * zeros}") in {1, None}
    assert await score(graders, grader, answer, "3") in {0, None}
    assert await score(graders, grader, answer, f"3{'0' * (zeros - 1)}") in {0, None}
    if grader != "freeform":
        assert await score(graders, grader, answer, f"3{'0' * zeros}") == 1


@pytest.mark.parametrize(
    "words", ["or more", "or fewer", "at least", "and a half", "maybe", "hundred", "only if even"]
)
async def test_words_that_change_a_number_are_no_unit(graders, words):
    for answer in (rf"\boxed{{3 \text{{ {words}}}}}", rf"\boxed{{\text{{3 {words}}}}}"):
        assert await score(graders, "math", answer, "3") == 0
        assert await score(graders, "math", answer.replace(words, "more cats"), "3") == 1


@pytest.mark.parametrize("gap", ["\u00a0", "\u2009", "\u202f", r"\,", r"\;", r"\ ", "~", "{,}"])
@pytest.mark.parametrize("grader", ["math", "integer", "freeform"])
async def test_a_gap_between_thousands_that_no_line_breaks_is_part_of_the_number(
    graders, grader, gap
):
    assert await score(graders, grader, rf"\boxed{{12{gap}000{gap}345}}", "12000345") == 1
    assert await score(graders, grader, rf"\boxed{{12{gap}000}}", "12") != 1
    if not gap.isascii():
        assert await score(graders, "integer", f"It is 12{gap}000 kg.", "12000") == 1
        assert await score(graders, grader, f"**Answer:** 12{gap}000", "12000") == 1


@pytest.mark.parametrize("command", ["text", "textbf", "mathrm", "texttt"])
async def test_words_in_a_text_command_are_exactly_the_words(graders, command):
    for target in ("valid", "New York", "'a'", "2, 3", "12.5"):
        answer = rf"\boxed{{\{command}{{{target}}}}}"
        assert await score(graders, "exact", answer, target) == 1
        assert await score(graders, "exact", answer.replace(target, f"in{target}"), target) == 0


@pytest.mark.parametrize(
    "spelling", [r"\frac{5}{2}", r"\dfrac52", "5/2", r"2\frac{1}{2}", r"\$2.50", r"2.5\,", "2.5"]
)
async def test_a_number_is_the_exact_number_in_any_notation(graders, spelling):
    assert await score(graders, "exact", rf"\boxed{{{spelling}}}", "2.5") == 1
    assert await score(graders, "exact", rf"\boxed{{{spelling}}}", "2.6") == 0
    assert await score(graders, "exact", rf"\boxed{{-{spelling}}}", "2.5") == 0


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "Here it is:\n```\n{}\n```\nDone.", "{}"])
async def test_an_object_in_a_code_block_is_the_object(graders, fence):
    target = '{"name": "Ada", "born": 1815}'
    for text in (target, "{'born': 1815,\n 'name': 'Ada'}"):
        assert await score(graders, "freeform", fence.format(text), target) == 1
    assert await score(graders, "freeform", fence.format('{"name": "Ada"}'), target) == 0


@pytest.mark.parametrize(
    ("form", "scores"),
    [
        ("The answer is 18 (9 eggs at $2 each).", {1}),
        ("The answer is: 18 (that is 9*2)", {1}),
        ("The answer is 18, as 9*2 = 18.", {1}),
        ("The answer is 18. Wait, that is wrong: it is 20.", {0}),
        ("Answer: 18; hmm, it should be 20", {0}),
        ("Answer: 18, or 20.", {0}),
        ("Answer: 18 (or 20)", {0}),
        ("The temperature is minus 18 degrees.", {0}),
        ("It is negative 18.", {0}),
        ("She needs more than 18 eggs.", {0}),
        ("The answer is less than **18**", {0}),
        ("She has 18 more than before.", {1}),
    ],
)
async def test_a_remark_behind_an_integer_counts_if_it_changes_the_number(graders, form, scores):
    assert await score(graders, "integer", form, "18") in scores
    assert (await score(graders, "integer", form, "-18") == 1) is ("minus" in form or "neg" in form)
    assert await score(graders, "integer", form, "20") == 0


@pytest.mark.parametrize(
    "joint", [", and ", ", or ", "; ", " and ", "$, and $", r", \text{ and } "]
)
async def test_boxes_in_a_list_are_one_answer(graders, joint):
    answer = rf"The roots are $\boxed{{1}}, \boxed{{2}}{joint}\boxed{{3}}$."
    assert await score(graders, "math", answer, "1, 2, 3") == 1
    assert await score(graders, "math", answer, "3") == 0


@pytest.mark.parametrize(
    ("typed", "latex"),
    [("x₁", "x_1"), ("a₁₀", "a_{10}"), ("1011₂", "1011_2"), ("5²⁰", "5^{20}"), ("3⁄4", r"\frac34")],
)
async def test_lowered_and_raised_digits_and_fraction_slashes_are_read(graders, typed, latex):
    assert await score(graders, "math", rf"\boxed{{{typed}}}", latex) == 1
    assert await score(graders, "math", rf"\boxed{{{typed}}}", latex.replace("0", "2") + "3") == 0
