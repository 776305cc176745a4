"""Answers that are announced: with decorations behind them, in bold, in other languages, between thoughts."""

import pytest

from batuta.core import Task, TaskId
from batuta.lab.tasks.graders import ChoiceGrader
from batuta.language.answer_extraction import visible_text, without_decorations

pytestmark = pytest.mark.anyio

BEHIND = (
    " ✅",
    " ✓",
    " ✔️",
    " 🎉",
    "🎉",
    " 👍",
    " ☑️",
    " 🙂",
    " 💡",
    " ⭐",
    " 👩\u200d🚀",
    " 🇫🇷",
    " ✨✨",
    "<|im_end|>",
    " <|eot_id|>",
    "</s>",
    " <end_of_turn>",
    "<|endoftext|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "\n<|im_end|>\n",
    " ✅<|im_end|>",
    "[EOS]",
    "<|return|>",
    " 🏁.",
)
"""Ticks, emoji and tokens that end a turn."""

ANNOUNCED = (
    ("choice", "B", "The answer is B{}"),
    ("choice", "B", "Answer: B{}"),
    ("choice", "B", "**Answer: B**{}"),
    ("choice", "B", "B{}"),
    ("choice", "B", "\\boxed{{B}}{}"),
    ("choice", "B", "So the correct option is (B){}"),
    ("integer", "42", "The answer is 42{}"),
    ("integer", "42", "Answer: 42{}"),
    ("integer", "42", "**Answer: 42**{}"),
    ("integer", "42", "42{}"),
    ("integer", "42", "#### 42{}"),
    ("integer", "42", "\\boxed{{42}}{}"),
    ("integer", "42", "So she has 42 books.{}"),
    ("exact", "valid", "The answer is valid{}"),
    ("exact", "valid", "Answer: valid{}"),
    ("exact", "valid", "**Answer: valid**{}"),
    ("exact", "valid", "valid{}"),
    ("exact", "42", "The answer is 42{}"),
    ("exact", "42", "Answer: 42{}"),
    ("math", "\\frac{1}{2}", "The answer is $\\frac12${}"),
    ("math", "\\frac{1}{2}", "Answer: 1/2{}"),
    ("math", "\\frac{1}{2}", "**Answer: 1/2**{}"),
    ("math", "\\frac{1}{2}", "1/2{}"),
    ("math", "\\frac{1}{2}", "Therefore, the probability is 1/2.{}"),
    ("math", "\\frac{1}{2}", "\\boxed{{1/2}}{}"),
    ("freeform", "Paris", "The answer is Paris{}"),
    ("freeform", "Paris", "Answer: Paris{}"),
    ("freeform", "Paris", "**Answer:** Paris{}"),
    ("freeform", "Paris", "Paris{}"),
    ("freeform", "Paris", "The capital is Paris.{}"),
    ("freeform", "5 km", "The answer is 5 km{}"),
    ("freeform", "5 km", "Answer: 5 km{}"),
)
IN_BOLD = (
    ("math", "12", "We count. Therefore, the number of ways is **12**."),
    ("math", "12", "We count. Therefore, **the number of ways is 12**."),
    ("math", "12", "We count. Therefore, the number of ways is __12__."),
    ("math", "12", "Hence, there are **12 ways**."),
    ("math", "12", "Thus the result of it is *12*."),
    ("math", "12", "Therefore, the number of ways is ***12***."),
    ("math", "12", "We count.\n\n**Therefore, the number of ways is 12.**"),
    ("math", "12", "We count. **Therefore**, the number of ways is **12**"),
    ("math", "12", "So, the total is **12**."),
    ("math", "12", "Therefore, the total is **$12$**."),
    ("math", "12", "Thus, the area is **12 cm**."),
    ("freeform", "Paris", "Thus, the capital is **Paris**."),
    ("freeform", "Paris", "The capital is **Paris**."),
    ("freeform", "Paris", "Therefore, the capital of France is __Paris__."),
    ("integer", "12", "Therefore, the number of ways is **12**."),
    ("integer", "12", "So it is __12__."),
    ("choice", "B", "Therefore, **B** is correct."),
    ("choice", "B", "So the best choice is **B**."),
    ("choice", "B", "Hence it must be *(B)*."),
)
THOUGHTS = (
    ("integer", "4", "<think>x</think>Answer: 4\n<think>maybe Answer: 5", 1),
    ("integer", "4", "<think>x</think>\nAnswer: 4<think>", 1),
    ("choice", "B", "<think>x</think>The answer is B.\n<think>or is it C? The answer is C", 1),
    ("math", "4", "<think>x</think>\\boxed{4} <think>no \\boxed{5}", 1),
    ("integer", "5", "<think>x</think>Answer: 4\n<think>maybe Answer: 5", 0),
    ("integer", "5", "<think>x</think><think>Answer: 5", 0),
    ("integer", "4", "<think>Answer: 4", 0),
    ("integer", "4", "<think>a</think><think>Answer: 4", 0),
)
RIGHT = (
    "B ist richtig.",
    "Antwort B ist richtig.",
    "Option B ist die richtige Antwort.",
    "Damit ist klar: B ist korrekt.",
    "B stimmt.",
    "La réponse B est correcte.",
    "B est la bonne réponse.",
    "Donc B est correct.",
    "La opción B es correcta.",
    "B es la respuesta correcta.",
    "Por lo tanto, B es la correcta.",
    "La risposta B è corretta.",
    "B è la risposta giusta.",
    "A alternativa B está correta.",
    "B é a resposta correta.",
    "B é a opção certa.",
    "Вариант B верный ответ.",
    "B является правильным ответом.",
    "B — правильный ответ.",
    "Б верно.",
    "B верно.",
    "Antwoord B is het juiste antwoord.",
    "B正确。",
    "B是正确的。",
    "所以选项B是正确答案",
    "B项正确",
    "B对。",
    "Bが正しい。",
    "したがって、Bが正解です。",
    "Bは正しいです。",
    "**B** ist richtig, denn A ist falsch.",
    "B est correcte, A est fausse.",
    "A ist falsch. B ist richtig.",
    "B正确，A错误。",
    "Wir rechnen.\n\nAlso: (B) ist richtig.",
    "B) ist richtig.",
    "B es correcta porque se cumple la ley.",
    "B ist richtig, weil x nur so passt.",
    "B è corretta perché si conserva l'energia.",
    "B选项是对的。",
    "我认为选项B正确。",
    "La opción correcta es la B.",
    "La alternativa correcta es B.",
    "L'option correcte est B.",
    "La bonne option est la B.",
    "La réponse juste est B.",
    "La risposta giusta è B.",
    "L'opzione corretta è la B.",
    "A alternativa correta é B.",
    "A resposta certa é a letra B.",
    "A resposta correta é a B.",
    "Die richtige Option ist B.",
    "Richtig ist B.",
    "正しい選択肢はBです。",
)
"""B is right, in eight languages other than English."""
UNCLEAR = (
    "B ist nicht richtig.",
    "La opción correcta no es B.",
    "La bonne option n'est pas B.",
    "A alternativa correta não é B.",
    "正しい選択肢はBではない。",
    "Ist B richtig?",
    "Wenn B richtig ist, dann folgt A.",
    "Falls B ist richtig, ...",
    "A oder B ist richtig.",
    "A und B sind richtig.",
    "B ist richtig, aber auch C.",
    "Weder A noch B ist richtig.",
    "B n'est pas correcte.",
    "Si B est correcte, on a A.",
    "B no es correcta.",
    "B non è corretta.",
    "B não é a resposta correta.",
    "B неверно.",
    "B не верно.",
    "Если B верно, то да.",
    "B is niet juist.",
    "B nie jest poprawna.",
    "B är inte rätt.",
    "B doğru değil.",
    "B doğru mu?",
    "B không đúng.",
    "B đúng không?",
    "B tidak benar.",
    "B ليست الإجابة الصحيحة.",
    "هل B صحيح؟",
    "B सही नहीं है।",
    "क्या B सही है?",
    "B সঠিক নয়।",
    "B δεν είναι η σωστή.",
    "B不正确。",
    "B是正确的吗？",
    "如果B正确，那么",
    "A和B正确。",
    "A正确，B正确，C错误。",
    "B对应A。",
    "B正确性未知",
    "Bは正しくない。",
    "Bが正しいわけではない。",
    "Bが正しいですか",
    "もしBが正しいなら",
    "B가 정답이 아닙니다.",
    "B가 맞지 않습니다.",
    "B가 맞는지 모르겠다.",
    "B가 정답일까요?",
    "Ich glaube nicht, B ist richtiger als A.",
    "A ist richtig. B ist richtig.",
    "Vielleicht B ist richtig.",
    "B ist richtig oder C ist richtig.",
    "Se B è corretta",
    "No creo que B es correcta.",
    "B wäre richtig, wenn x positiv wäre.",
    "B ist richtig, wenn x > 0.",
    "B ist richtig, aber nur falls x > 0.",
    "B est correcte si x > 0.",
    "B est correcte, à condition que x > 0.",
    "B es correcta solo si x > 0.",
    "B è corretta se x > 0.",
    "B está correta, caso x > 0.",
    "B верно только при x>0.",
    "B верно, если x > 0.",
    "B is juist als x > 0.",
    "B jest poprawna, jeśli x > 0.",
    "B doğru, eğer x > 0.",
    "B đúng nếu x > 0.",
    "B benar jika x > 0.",
    "B صحيح إذا كان x > 0.",
    "B सही है यदि x > 0",
    "B是正确的，如果x>0。",
    "B正确的前提是x>0。",
    "B가 정답이라고 할 수 없다.",
    "Man könnte meinen, B ist richtig.",
    "On pourrait croire: B est correcte.",
    "Algunos piensan: B es correcta.",
    "有人认为B正确。",
    "Некоторые считают, B верно.",
)
"""B is not said to be right, or another letter is too."""


async def score(graders, grader, answer, target):
    task = Task(id=TaskId("t/1"), question="?", target=target, grader=grader)
    return (await graders.grade(task, answer)).score


@pytest.mark.parametrize(("grader", "target", "form"), ANNOUNCED)
async def test_what_stands_behind_an_answer_and_says_nothing_does_not_count(
    graders, grader, target, form
):
    for behind in BEHIND:
        assert await score(graders, grader, form.format(behind), target) == 1, behind


@pytest.mark.parametrize(("grader", "target", "answer"), IN_BOLD)
async def test_a_concluding_sentence_may_have_its_value_in_bold(graders, grader, target, answer):
    assert await score(graders, grader, answer, target) == 1


@pytest.mark.parametrize(
    "answer", ["So **x = 12**.", "So x = **12**.", "x = __12__", "*x* = *12*", "So **x** = **12**."]
)
async def test_a_whole_answer_may_have_its_value_in_bold(graders, answer):
    assert await score(graders, "math", answer, "12") == 1
    assert await score(graders, "math", answer, "13") == 0


@pytest.mark.parametrize(
    "value", ["**13**", "not **12**", "**-12**", "about **12**", "**12** or **13**", "**12", "12**"]
)
async def test_bold_makes_no_other_value_right(graders, value):
    answer = f"We count. Therefore, the number of ways is {value}."
    assert await score(graders, "math", answer, "12") == 0


@pytest.mark.parametrize(("grader", "target", "answer", "right"), THOUGHTS)
async def test_thoughts_that_begin_again_and_never_end_are_no_answer(
    graders, grader, target, answer, right
):
    assert await score(graders, grader, answer, target) == right


@pytest.mark.parametrize(
    ("grader", "answer", "target"),
    [
        ("choice", "A \u2713\nB \u2717", "B"),
        ("choice", "A \u2705\nB \u2705", "B"),
        ("choice", "A \u274c\nB \u274c", "B"),
        ("choice", "The answer is <s>B</s>", "B"),
        ("choice", "The answer is (B) \u274c", "B"),
        ("choice", "Answer: B \U0001f914", "B"),
        ("exact", "Answer: valid \u274c", "valid"),
        ("exact", "Answer: \U0001f389", "valid"),
    ],
)
async def test_marks_that_say_something_count(graders, grader, answer, target):
    assert await score(graders, grader, answer, target) == 0


def test_emoji_that_are_the_answer_stay():
    for text in ("\U0001f389", "Answer:\n\U0001f389", "A\u2660", "x \u274c", "print('\u2728')"):
        assert without_decorations(text) == text
    assert visible_text("use <|im_end|> to end a turn") == "use <|im_end|> to end a turn"


@pytest.mark.parametrize("answer", RIGHT)
def test_a_letter_that_is_right_in_another_language(answer):
    assert ChoiceGrader(["w", "x", "y", "z"]).chosen_letter(answer) == "B"


@pytest.mark.parametrize("answer", UNCLEAR)
def test_a_letter_that_is_doubted_denied_or_one_of_several_is_none(answer):
    assert ChoiceGrader(["w", "x", "y", "z"]).chosen_letter(answer) is None


def test_an_announced_answer_goes_before_what_is_said_of_other_options():
    answer = "答案：C。解析：A正确，B正确，D正确，C错误。"
    assert ChoiceGrader(["w", "x", "y", "z"]).chosen_letter(answer) == "C"


CITIES = ("Paris", "London", "Rome", "Madrid")


@pytest.mark.parametrize("form", ["{}. {}", "({}) {}", "- {}: {}", "**{}.** {}\n", "{} - {}", "{}"])
@pytest.mark.parametrize("options", [CITIES, ()])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_list_of_the_options_chooses_none(form, options, count):
    lines = [form.format(*pair) for pair in zip("ABCD"[:count], CITIES, strict=False)]
    grader = ChoiceGrader(options)
    assert grader.chosen_letter("The options are\n" + "\n".join(lines)) is None
    assert grader.chosen_letter("\n".join(lines)) is None
    chosen = "AB"[count % 2]
    again = "\n".join([*lines, lines["AB".index(chosen)]])
    assert ChoiceGrader(CITIES).chosen_letter(again) == chosen


@pytest.mark.parametrize("answer", ["\u274c D) Madrid", "\u274c D", "A is it.\n\n\u2717 Option D"])
def test_a_crossed_out_option_is_not_chosen(answer):
    assert ChoiceGrader(CITIES).chosen_letter(answer) is None


@pytest.mark.parametrize("options", [CITIES, ()])
@pytest.mark.parametrize("first", ["B", "**B**", "(B)", "B. London", "**B. London**"])
def test_a_letter_above_its_explanation_is_chosen(first, options):
    grader = ChoiceGrader(options)
    for below in ("It is in England.", "**Why:** A lies in France.\n- So it is clear."):
        assert grader.chosen_letter(f"{first}\n\n{below}") == "B"
    for below in ("Hmm, A fits better.", "C. Rome", "No, C is better.", "seems likely, or C"):
        assert grader.chosen_letter(f"{first}\n\n{below}") != "B"
    assert grader.chosen_letter(f"{first}?\n\nI am not sure.") is None


@pytest.mark.parametrize(
    "answer", ["B is the answer.", "That rules out A, C and D, leaving only B."]
)
def test_a_letter_that_is_left_or_is_the_answer_is_chosen(answer):
    assert ChoiceGrader(CITIES).chosen_letter(answer) == "B"
    assert ChoiceGrader(CITIES).chosen_letter(f"Not so: {answer.replace('is', 'is not')}") is None
