"""Instructions: relations that are not known, and languages that share a script."""

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.graders.instructions import InstructionsGrader

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("length_constraints:number_words", {"num_words": 5, "relation": "at most"}),
        ("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "more than"}),
        ("keywords:letter_frequency", {"letter": "a", "let_frequency": 1, "let_relation": ""}),
        ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": None}),
    ],
)
def test_a_relation_that_is_not_known_is_an_error(name, said):
    with pytest.raises(SourceError, match="unknown relation"):
        InstructionsGrader([(name, said)])


RUSSIAN = "Это не просто слова, но и мысль, которую он хотел выразить для всех."
UKRAINIAN = "Це не просто слова, але й думка, яку він хотів висловити для всіх, і вона є."
BULGARIAN = "Това не са просто думи, но и мисъл, която той искаше да изрази за всички, че е така."
ARABIC = "هذا الكتاب في المدرسة التي على الطريق من هنا إلى هناك"
PERSIAN = "این کتاب در مدرسه است که از آن برای درس با هم استفاده می شود"
URDU = "یہ کتاب اسکول میں ہے اور اس کے بارے میں سب کو پتہ ہے"
HINDI = "यह किताब स्कूल में है और इस के बारे में सब को पता है"
MARATHI = "हे पुस्तक शाळेत आहे आणि ते सर्वांना माहित आहे पण तो नाही"
NEPALI = "यो किताब विद्यालयमा छ र यस को बारेमा सबैलाई थाहा छ तर हो"
SIMPLIFIED = "这本书是我们国家的学生在学校里学习的时候常常会看的书"
TRADITIONAL = "這本書是我們國家的學生在學校裡學習的時候常常會看的書"
DANISH = "Det er ikke en bog, som jeg har læst, og den er på bordet med et glas af vand."


@pytest.mark.parametrize(
    ("text", "language", "score"),
    [
        (RUSSIAN, "ru", 1), (RUSSIAN, "uk", 0), (RUSSIAN, "bg", 0),
        (UKRAINIAN, "uk", 1), (UKRAINIAN, "ru", 0), (BULGARIAN, "bg", 1), (BULGARIAN, "ru", 0),
        (ARABIC, "ar", 1), (ARABIC, "fa", 0), (PERSIAN, "fa", 1), (PERSIAN, "ur", 0), (PERSIAN, "ar", 0),
        (URDU, "ur", 1), (URDU, "ar", 0), (HINDI, "hi", 1), (HINDI, "mr", 0), (MARATHI, "mr", 1),
        (MARATHI, "hi", 0), (NEPALI, "ne", 1), (NEPALI, "hi", 0),
        (SIMPLIFIED, "zh", 1), (SIMPLIFIED, "zh-cn", 1), (SIMPLIFIED, "zh-tw", 0), (SIMPLIFIED, "ja", 0),
        (TRADITIONAL, "zh-tw", 1), (TRADITIONAL, "zh-cn", 0), (DANISH, "da", 1), (DANISH, "sv", 0),
        ("Москва Петербург Казань", "ru", None), ("Москва Петербург Казань", "en", 0),
        ("तीन चार पाँच छह", "hi", None), ("東京都千代田区霞が関", "ja", 1), ("東京都千代田区霞ヶ関", "zh", 0),
        ("東京都千代田区北海道", "zh", None), ("Kniha je na stole.", "xx", None),
    ],
)  # fmt: skip
async def test_languages_that_share_a_script_are_told_apart_or_declined(text, language, score):
    grader = InstructionsGrader([("language:response_language", {"language": language})])
    assert (await grader.grade(text, "")).score == score
