"""Instructions of form, each kept once and broken once; languages told by their look."""

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.graders.instructions import RULES, InstructionsGrader, find_language

pytestmark = pytest.mark.anyio

CASES = {
    "keywords:existence": ({"keywords": ["hill", "sheep"]}, "Sheep on a hill.", "A hill."),
    "keywords:frequency": (
        {"keyword": "olm", "frequency": 2, "relation": "at least"}, "Olm by the olm.", "Olm."),
    "keywords:forbidden_words": ({"forbidden_words": ["can"]}, "A canoe.", "I can."),
    "keywords:letter_frequency": (
        {"letter": "z", "let_frequency": 1, "let_relation": "less than"}, "No such.", "Zebra."),
    "language:response_language": (
        {"language": "de"}, "Das ist nicht der Berg, und es ist auch kein Tal.", "It is the hill."),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": "less than"}, "One, at 3.5 km.", "One. Two."),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    "length_constraints:number_words": (
        {"num_words": 3, "relation": "at least"}, "one two three", "one two"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hill"},
        "A.\n\n**Hill** it is.", "Hill.\n\nA."),
    "detectable_content:number_placeholders": (
        {"num_placeholders": 2}, "[name] of [town]", "[name]"),
    "detectable_content:postscript": (
        {"postscript_marker": "P.S."}, "Bye.\nP. S. Write soon.", "Bye."),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a"),
    "detectable_format:constrained_response": ({}, "My answer is yes.", "Yes."),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2}, "*one* and **two**", "*one* two"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2}, "Section 1\na\nSection 2\nb", "Section 1"),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "a: 1"),
    "detectable_format:title": ({}, "<<Hills>>\nGreen.", "Hills\nGreen."),
    "combination:two_responses": ({}, "One.\n******\nTwo.", "One.\n******\nOne."),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Which hill?"}, "Which hill? The green one.", "The green one."),
    "startend:end_checker": ({"end_phrase": "That is all."}, "Green. That is all.", "That is all. No."),
    "startend:quotation": ({}, '"Green."', "Green."),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"}, "BIG GREEN hill", "BIG hill"),
    "change_case:english_capital": ({}, "GREEN HILL.", "GREEN hill."),
    "change_case:english_lowercase": ({}, "green hill.", "Green hill."),
    "punctuation:no_comma": ({}, "Green and big.", "Green, big."),
}  # fmt: skip


async def test_every_rule_is_kept_and_broken():
    assert set(CASES) == set(RULES)
    for name, (arguments, kept, broken) in CASES.items():
        grader = InstructionsGrader([(name, arguments)])
        assert (await grader.grade(kept, "")).score == 1, name
        found = await grader.grade(broken, "")
        assert (found.score, found.reason) == (0, f"breaks {name}"), name


async def test_all_of_them_must_be_kept_and_what_cannot_be_told_stays_undecided():
    rules = [("punctuation:no_comma", {}), ("language:response_language", {"language": "de"})]
    grader = InstructionsGrader(rules)
    assert (await grader.grade("Xyzzy plugh frotz.", "")).score is None
    assert (await grader.grade("Xyzzy, plugh frotz.", "")).score == 0
    assert (await grader.grade("<think>Green", "")).score == 0
    with pytest.raises(SourceError, match="unknown instruction: length:none"):
        InstructionsGrader([("length:none", {})])
    with pytest.raises(SourceError, match="there are no instructions"):
        InstructionsGrader([])


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("これは丘です。とても緑です。", "ja"),
        ("这是一座很绿的小山丘吗", "zh"),
        ("Это очень зелёный холм", "ru"),
        ("यह एक हरी पहाड़ी है", "hi"),
        ("이것은 푸른 언덕입니다", "ko"),
        ("La colline est verte et les moutons sont dans le pré.", "fr"),
        ("La colina es verde y las ovejas están en el prado.", "es"),
    ],
)
def test_a_language_is_told(text, language):
    assert language in find_language(text)


@pytest.mark.parametrize("text", ["", "42", "Xyzzy plugh frotz quux"])
def test_what_tells_no_language(text):
    assert find_language(text) is None


@pytest.mark.parametrize(
    ("text", "many"),
    [("***one***", 1), ("** one **", 1), ("***\ntwo\n***", 0), ("**\n**", 0), ("* a\n* b", 0)],
)
def test_what_is_highlighted_is_counted(text, many):
    rule = RULES["detectable_format:number_highlighted_sections"]
    assert rule(text, {"num_highlights": many}) and not rule(text, {"num_highlights": many + 1})
