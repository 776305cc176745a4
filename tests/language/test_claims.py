"""The claims of an answer beside what was fetched: what a source holds, what it does not, what nobody read."""

import time

from batuta.language.claims import MAX_ANSWER, PASSAGE, Support, find_claims
from batuta.language.grounding import Source

PAGE = "https://a.example/imola"
TEXT = (
    "It is old. " * 60
    + "The Imola observatory was opened in 1822 by count Toschi. "
    + "More of it. " * 60
)
SOURCES = [
    Source(text=TEXT, url=PAGE, number=2),
    Source(text="Nothing of the kind.", url="https://b.example/", number=1),
]


def supports(answer, sources=SOURCES):
    return [[each.support.value for each in claim.cited] for claim in find_claims(answer, sources)]


def test_a_claim_stands_beside_the_passage_that_holds_it():
    (claim,) = find_claims(
        f"# Report\n\nThe observatory of Imola was opened in 1822 ({PAGE}).", SOURCES
    )
    (cited,) = claim.cited
    assert (cited.support, cited.url, claim.is_held) == (Support.HELD, PAGE, True)
    assert "opened in 1822 by count Toschi" in cited.passage and len(cited.passage) <= PASSAGE + 2


def test_another_number_is_not_held_and_what_nobody_read_is_said():
    assert supports("The Imola observatory was opened in 1833 [2]. It was opened in 1822 [1].") == [["unheld"], ["unheld"]]  # fmt: skip
    assert supports("The observatory was opened in 1822 (https://c.example/x) [9].") == [
        ["unread"] * 2
    ]
    assert supports("The observatory was opened in 1822.") == [[]]
    (claim,) = find_claims(
        "The Imola observatory was opened in 1822 [2] (https://c.example/x).", SOURCES
    )
    assert not claim.is_held


def test_marks_behind_a_sentence_belong_to_it():
    assert supports("The Imola observatory was opened in 1822. [2]\n\nCassel closed. [1]") == [["held"], ["unheld"]]  # fmt: skip


def test_a_list_of_sources_makes_no_claims():
    answer = (
        f"Imola's observatory was opened in 1822 [2].\n\n## Sources\n\n- {PAGE}\n- [2] {PAGE}\n"
    )
    assert len(find_claims(answer, SOURCES)) == 1


def test_hostile_texts_end_soon():
    began = time.process_time()
    for answer in (
        "[1]" * MAX_ANSWER,
        "a" * MAX_ANSWER,
        f"{PAGE} x1822 " * 9000,
        "# " * MAX_ANSWER,
        "1,1" * MAX_ANSWER,
    ):
        find_claims(answer, [*SOURCES, Source(text="1822 " * 20_000, url=PAGE)])
    assert time.process_time() - began < 30
