"""Graders on real questions and on recorded answers of real models, where BATUTA_DATA has them."""

import gzip
import io
import json
import random
import re
from itertools import islice

import pytest

from batuta.lab.tasks.graders import ChoiceGrader, IntegerGrader, MathsGrader
from batuta.lab.tasks.graders.latex import normalize_latex
from data_folder import FOLDER, NAMED, explain_missing

pytestmark = pytest.mark.anyio


def rows(path, every=1):
    """The rows of a file of JSON lines, or every so many of them."""
    file = FOLDER / path
    if not NAMED or not file.exists():
        pytest.skip(explain_missing(path))
    if file.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file.open("rb"))
        text = io.TextIOWrapper(reader, encoding="utf-8", newline="\n")
    else:
        text = (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8")
    with text:
        return [json.loads(line) for line in islice(text, 0, None, every) if line.strip()]


def outcomes(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    if not NAMED or not (FOLDER / path).exists():
        pytest.skip(explain_missing(path))
    return parquet.read_table(FOLDER / path).to_pylist()


async def test_math_500_solutions_are_right(pool):
    grader, tasks = MathsGrader(pool), rows("bench/math500/test.jsonl")
    scores = [(await grader.grade(task["solution"], task["answer"])).score for task in tasks]
    assert (len(scores), scores.count(1)) == (500, 500)


async def test_math_500_answers_to_other_questions_are_wrong(pool):
    targets = [task["answer"] for task in rows("bench/math500/test.jsonl")]
    others = random.Random(0).sample(targets, len(targets))
    grader = MathsGrader(pool)
    pairs = [
        (t, a)
        for t, a in zip(targets, others, strict=True)
        if normalize_latex(t) != normalize_latex(a)
    ]
    assert len(pairs) > 450
    scores = [(await grader.grade(f"\\boxed{{{a}}}", t)).score for t, a in pairs]
    assert scores.count(1) == 0
    assert scores.count(None) == 0


def real_answers():
    olympiad = [", ".join(row["answer"]) for row in rows("bench/olympiadbench/test.jsonl")]
    return olympiad + [row["answer"] for row in rows("bench/math500/test.jsonl")]


def mutated(answer, rng):
    """The answer with another number, and with another sign."""
    if numbers := list(re.finditer(r"\d+", answer)):
        one = rng.choice(numbers)
        yield f"{answer[: one.start()]}{int(one[0]) + 1}{answer[one.end() :]}"
    for sign, other in ("-+", "+-"):
        if places := [found.start() for found in re.finditer(re.escape(sign), answer)]:
            place = rng.choice(places)
            yield answer[:place] + other + answer[place + 1 :]


async def test_one_number_or_sign_changed_is_wrong(pool):
    grader, rng = MathsGrader(pool), random.Random(3)
    wrong = [(target, answer) for target in real_answers() for answer in mutated(target, rng)]
    assert len(wrong) > 1300
    for target, answer in wrong:
        assert (await grader.grade(f"\\boxed{{{answer}}}", target)).score == 0, (answer, target)


REWRITTEN = (
    lambda text: re.sub(r"(?<!\d)(?<!\d )\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text),
    lambda text: text.replace(r"\frac", r"\dfrac"),
    lambda text: re.sub(r"([+\-=,()])", r" \1 ", text),
    lambda text: text.replace("(", r"\left(").replace(")", r"\right)"),
    lambda text: re.sub(r"(?<![\\a-z_^{])(\d)([a-z](?![a-z]))", r"\1 \\cdot \2", text),
    lambda text: re.sub(r"\\sqrt\{([^{}]*)\}", r"{(\1)}^{1/2}", text),
    lambda text: re.sub(r"\\sqrt\{([^{}]*)\}", r"{(\1)}^{0.5}", text),
    lambda text: text if re.search(r"[=<>,]|\\[lg]e|text", text) else f"N = {text}",
)


async def test_another_way_of_writing_is_right(pool):
    grader, total = MathsGrader(pool), 0
    for target in real_answers():
        if r"\left" in target:
            continue
        for answer in {rewrite(target) for rewrite in REWRITTEN} - {target}:
            total += 1
            grade = await grader.grade(f"$\\boxed{{{answer}}}$", target)
            assert grade.score == 1, (answer, target)
    assert total > 1700


async def test_gsm8k_solutions_are_right():
    grader, tasks = IntegerGrader(), rows("bench/gsm8k/test.jsonl")
    scores = [(await grader.grade(task["solution"], task["answer"])).score for task in tasks]
    assert (len(scores), scores.count(1)) == (1319, 1319)


async def test_mmlu_letters_in_four_forms():
    forms = (
        "The answer is ({}).",
        "**Answer: {}**",
        "Reasons.\n\n{}",
        "so $\\boxed{{\\text{{{}}}}}$",
    )
    tasks = rows("bench/mmlu/test.jsonl.gz") + rows("bench/mmlu/dev.jsonl")
    assert len(tasks) == 14_327
    for number, task in enumerate(tasks[::5]):
        form, right = forms[number % len(forms)], task["answer"]
        right = "ABCD"[right] if isinstance(right, int) else right
        grader = ChoiceGrader(task["choices"])
        assert [grader.chosen_letter(form.format(letter)) for letter in "ABCD"] == list("ABCD")
        assert (await grader.grade(form.format(right), right)).score == 1


async def test_mmlu_options_in_words():
    """An option's text is its letter, unless two options read the same or it is itself a letter."""
    named = read = 0
    for task in rows("bench/mmlu/test.jsonl.gz", every=5):
        grader = ChoiceGrader(task["choices"])
        for letter, option in zip("ABCD", task["choices"], strict=True):
            if option in "ABCD":
                continue
            chosen = grader.chosen_letter(f"The answer is {option}")
            assert chosen in {letter, None}, (task, chosen)
            named += 1
            read += chosen == letter
    assert named > 11_000
    assert read >= 0.997 * named  # of all questions 0.998


async def test_recorded_letters_of_mmlu_pro():
    """Against the benchmark's own extraction, where a reply says "answer is X" for one X only."""
    recorded = {
        (str(row["query_id"]), row["model"]): row["answer"]
        for row in outcomes("recorded/mmlu_pro/outcomes.parquet")
    }
    options = {
        str(row["query_id"]): row["options"] for row in rows("recorded/mmlu_pro/queries.jsonl.zst")
    }
    replies = rows("recorded/mmlu_pro/responses_top12.jsonl.zst", every=115)
    sample = [
        reply
        for reply in replies
        if "Question:" not in reply["response"]
        and len(set(re.findall(r"answer is \(?([A-J])\)?", reply["response"]))) == 1
    ]
    assert len(sample) > 900
    same = other = 0
    for reply in sample:
        key = str(reply["query_id"])
        chosen = ChoiceGrader(options[key]).chosen_letter(reply["response"])
        same += chosen == recorded[key, reply["model"]]
        other += chosen not in {None, recorded[key, reply["model"]]}
    assert same >= 0.99 * len(sample)
    assert other <= 0.002 * len(sample)


async def test_recorded_integers_of_gsm8k():
    """Against the scores in the record, which count `$18.00` for 18 as wrong."""
    targets = {
        " ".join(row["problem"].split()): row["answer"] for row in rows("bench/gsm8k/test.jsonl")
    }
    prompts = {
        row["query_id"]: " ".join(row["prompt"].split())
        for row in rows("recorded/routellm/queries.jsonl.zst")
    }
    grader, same, harsher, total = IntegerGrader(), 0, 0, 0
    for row in outcomes("recorded/routellm/outcomes.parquet"):
        if not row["task"].startswith("gsm8k"):
            continue
        target = targets[prompts[row["query_id"]]]
        score = (await grader.grade(row["response"], target)).score
        total, same, harsher = (
            total + 1,
            same + (score == row["score"]),
            harsher + (score < row["score"]),
        )
        if score > row["score"]:
            assert re.search(rf"{int(target):,}(?:\.0|%)", row["response"]), row["response"]
    assert total == 2638
    assert same >= 0.97 * total
    assert harsher <= 0.012 * total
