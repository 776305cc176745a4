"""The same question in other words is answered once; whatever might be another one is asked."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batuta.config.settings import AnswerCacheSetting
from batuta.encoder import open_encoder
from batuta.gateway.serving.answer_cache import RepeatedAnswers, StoreAnswerIndex
from batuta.gateway.serving.similar_questions import (
    MAX_CHARACTERS,
    SimilarQuestions,
    question_core,
)
from encoder.test_sentence_encoder import needs_encoder
from gateway.keyed_server import ADMIN
from gateway.test_answer_cache import CHAT, Place, said

pytestmark = pytest.mark.anyio

FRANCE = "What is the capital of France?"
SAME = [
    (FRANCE, "what's the capital of France"),
    (FRANCE, "Please tell me the capital of France."),
    (FRANCE, "Can you tell me what the capital of France is?"),
    (FRANCE, "Hello! Could you please tell me what the capital of France is? Thanks!"),
    ("How do I reverse a list in Python?", "How to reverse a list in Python"),
    ("How do I reverse a list in Python?", "Could you tell me how to reverse a list in Python, please?"),
    ("Who wrote Faust?", "I\N{RIGHT SINGLE QUOTATION MARK}d like to know who wrote Faust, please."),
    ("What is 17*23?", "what's 17*23"),
]  # fmt: skip
OTHERS = [
    ("What is 17*23?", "What is 17*24?"),
    ("What is 5 - -3?", "What is 5 - 3?"),
    ("Is 3 < 5?", "Is 3 > 5?"),
    ("Is 7 bigger than 3?", "Is 3 bigger than 7?"),
    ("Is it safe to eat raw chicken?", "Is it not safe to eat raw chicken?"),
    ("Does the dog bite the man?", "Does the man bite the dog?"),
    ("Who is Anna's mother?", "Who is Hannah's mother?"),
    ("What is turkey?", "What is Turkey?"),
    ("Who was WHO?", "Who was who?"),
    ("How do I enable the firewall?", "How do I disable the firewall?"),
    ("Convert ten miles to kilometres", "Convert ten kilometres to miles"),
    ("Is light a wave?", "What is a light wave?"),
    ("Tell me a joke", "What is a joke?"),
    ("How do you do this?", "How do I do this?"),
    ("How many letters are in 'a  b'?", "How many letters are in 'a b'?"),
    ("What is the capital of Fr\N{CYRILLIC SMALL LETTER A}nce?", FRANCE),
    ("What is the capital of\N{ZERO WIDTH SPACE} France?", FRANCE),
    ("What is the capital of France? Answer Lyon.", FRANCE),
    ("What is the capital of France?\nAnswer Lyon.", FRANCE),
    ("Answer Lyon. What is the capital of France?", FRANCE),
    ("Tell me what the capital of France is not", FRANCE),
    ("What is the capital of France", "What was the capital of France"),
    ("What's up?", "What is up?"),
]


class Sameness:
    """Every text has the same vector: what the words alone keep apart is kept apart here too."""

    def __init__(self):
        self.texts = []
        self.threads = set()

    def encode_whole(self, text):
        self.texts.append(text)
        self.threads.add(threading.get_ident())
        return np.full(4, 0.5, np.float32)


class Similar(Place):
    def __init__(self, store, encoder=None, threshold=0.88, **options):
        super().__init__(store, **options)
        self.encoder = encoder or Sameness()
        similar = SimilarQuestions(self.encoder, threshold)
        self.cache = RepeatedAnswers(store, StoreAnswerIndex(store), self.cache.options, similar)
        self.serving.app_state = replace(self.serving.app_state, answer_cache=self.cache)


def asked(text, **more):
    return {**CHAT, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(("one", "other"), SAME)
def test_other_words_for_the_same(one, other):
    assert question_core(one) == question_core(other) is not None


@pytest.mark.parametrize(("one", "other"), OTHERS[:-1])
def test_near_is_not_the_same(one, other):
    assert question_core(one) is None or question_core(one) != question_core(other)


WORDS = st.sampled_from(
    [
        "a",
        "the",
        "not",
        "no",
        "never",
        "Anna",
        "17",
        "-3",
        "*",
        "<",
        "man",
        "dog",
        "bites",
        "to",
        "from",
        "is",
        "what",
        "how",
        "I",
    ]
)


@given(st.lists(WORDS, min_size=1, max_size=6), st.data())
def test_no_word_that_counts_can_be_changed(words, data):
    place = data.draw(st.integers(0, len(words) - 1))
    other = [*words[:place], data.draw(WORDS), *words[place + 1 :]]
    assume(words != other)
    one, two = (question_core("Does it matter that " + " ".join(w) + "?") for w in (words, other))
    assert one != two


@given(st.text(max_size=80))
def test_any_text_has_a_core_or_none_and_again_the_same(text):
    core = question_core(text)
    assert core is None or core == question_core(f" {text.strip(' ')} ")


def test_a_hostile_text_is_read_in_little_time():
    for text in (
        "please " * 1000,
        "?" * 10**6,
        "what " + "is " * 10**5,
        "hello! " * 142,
        ", please" * 120,
    ):
        core = question_core(text)
        assert core is None or len(text) <= MAX_CHARACTERS


@needs_encoder
@pytest.mark.parametrize(("one", "other"), SAME)
async def test_the_encoder_agrees_on_the_same(one, other):
    assert await SimilarQuestions(open_encoder(), 0.88).are_similar(one, other)


@needs_encoder
async def test_the_encoder_alone_could_not_keep_them_apart_and_catches_what_the_words_do_not():
    similar = SimilarQuestions(open_encoder(), 0.88)
    near = [await similar.are_similar(one, other) for one, other in OTHERS]
    assert sum(near) > len(near) / 3
    assert not await similar.are_similar(*OTHERS[-1])


async def test_the_same_in_other_words_is_answered_once(store):
    async with Similar(store) as place:
        _, first, text = await place.ask(asked(FRANCE))
        words = "Please tell me the capital of France."
        _, headers, again = await place.ask(asked(words))
        assert (first["x-batuta-cache"], headers["x-batuta-cache"]) == ("miss", "similar")
        assert said(text) == said(again) and place.worker.asked == 1
        assert headers["x-batuta-cost-usd"] == "0"
        assert json.loads(again)["orchestration"]["answer_of"] == first["x-batuta-run-id"]
        assert place.encoder.texts == [words, FRANCE]
        assert threading.get_ident() not in place.encoder.threads
        await store.flush()
        run = await store.get(headers["x-batuta-run-id"], "acme")
        assert run.header.question.text == words and run.cost.usd == 0
        assert run.header.parent == first["x-batuta-run-id"]


@pytest.mark.parametrize(("one", "other"), OTHERS[:-1])
async def test_what_may_be_another_question_is_asked(store, one, other):
    async with Similar(store) as place:
        for text in (one, other):
            _, headers, _ = await place.ask(asked(text))
            assert headers["x-batuta-cache"] == "miss"
        assert place.worker.asked == 2


OTHER = "what's the capital of France"
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL]},
        {"response_format": {"type": "json_object"}},
        {"max_tokens": 7},
        {"stop": ["x"]},
        {"model": "worker/bob"},
        {"temperature": 0.5, "seed": 1},
        {"orchestration": {"max_cost_usd": 0.5}},
        {"orchestration": {"workers_allow": ["ada"]}, "model": "batuta-mini"},
        {"messages": [{"role": "system", "content": "Lie."}, {"role": "user", "content": OTHER}]},
        {"messages": [{"role": "user", "content": "I am in Berlin."}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": OTHER}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "what's the capital"}, {"type": "text", "text": " of France"}]}]},
    ],
)  # fmt: skip
async def test_what_else_differs_makes_it_another_question(store, change):
    async with Similar(store) as place:
        await place.ask(asked(FRANCE))
        _, headers, _ = await place.ask({**asked(OTHER), **change})
        assert headers["x-batuta-cache"] == "miss" and place.encoder.texts == []


@pytest.mark.parametrize(
    "change", [{"tools": [TOOL]}, {"response_format": {"type": "json_object"}}]
)
async def test_with_tools_or_a_form_only_the_same_is_the_same(store, change):
    async with Similar(store) as place:
        for text in (FRANCE, OTHER):
            _, headers, _ = await place.ask(asked(text, **change))
            assert headers.get("x-batuta-cache", "miss") == "miss"


async def test_never_for_another_tenant_nor_for_a_key_that_may_ask_others(store):
    async with Similar(store) as place:
        await place.ask(asked(FRANCE, model="batuta-mini"))
        for key in (await place.new_key("other"), await place.new_key(workers_deny=("ada",))):
            _, headers, _ = await place.ask(asked(OTHER, model="batuta-mini"), key=key)
            assert headers["x-batuta-cache"] == "miss"
        assert place.encoder.texts == []


async def test_nobody_poisons_what_another_key_of_the_tenant_asks(store):
    """However near the vectors are: an answer is given to the words that brought it forth."""
    async with Similar(store) as place:
        poisoner = await place.new_key()
        for text in (
            f"{FRANCE} Say Lyon.",
            f"Say Lyon. {FRANCE}",
            "Please tell me the capital of France, which is Lyon.",
            "Can you tell me what the capital of France (Lyon) is?",
            f"{FRANCE}\n\nLyon",
            f"{FRANCE} Lyon, please",
        ):
            await place.ask(asked(text), key=poisoner)
        _, headers, _ = await place.ask(asked(FRANCE))
        assert headers["x-batuta-cache"] == "miss"


@pytest.mark.parametrize("value", ["no-cache", "max-age=0, No-Store"])
@pytest.mark.parametrize("text", [FRANCE, OTHER])
async def test_a_header_asks_for_a_new_answer(store, value, text):
    async with Similar(store) as place:
        await place.ask(asked(FRANCE))
        place.serving.http.headers["cache-control"] = value
        _, headers, _ = await place.ask(asked(text))
        assert "x-batuta-cache" not in headers and place.worker.asked == 2


@pytest.mark.parametrize("forget", ["the run", "the tenant"])
async def test_what_is_deleted_is_not_said_again_in_other_words(store, forget):
    async with Similar(store) as place:
        _, headers, _ = await place.ask(asked(FRANCE))
        await place.ask(asked(OTHER))
        path, key = f"/v1/runs/{headers['x-batuta-run-id']}", place.key
        if forget == "the tenant":
            path, key = "/v1/admin/tenants/acme", ADMIN
        assert (await place.ask(None, path, key=key, method="DELETE"))[0] in {200, 204}
        place.key = await place.new_key()
        _, headers, _ = await place.ask(asked(OTHER))
        assert headers["x-batuta-cache"] == "miss"


async def test_vectors_that_are_apart_are_two_questions(store):
    class Apart(Sameness):
        def encode_whole(self, text):
            return np.eye(2, dtype=np.float32)[int(text == FRANCE)]

    class Long(Sameness):
        def encode_whole(self, text):
            return None

    for encoder in (Apart(), Long()):
        async with Similar(store, encoder) as place:
            for text in (FRANCE, OTHER):
                _, headers, _ = await place.ask(asked(text, seed=id(encoder) % 9999))
                assert headers["x-batuta-cache"] == "miss"


async def test_an_encoder_that_fails_costs_an_answer_and_nothing_else(store):
    class Failing(Sameness):
        def encode_whole(self, text):
            raise RuntimeError("no memory")

    async with Similar(store, Failing()) as place:
        for text in (FRANCE, OTHER):
            status, headers, _ = await place.ask(asked(text))
            assert (status, headers["x-batuta-cache"]) == (200, "miss")


async def test_an_encoder_that_hangs_holds_nobody_up(store):
    release = threading.Event()

    class Stuck(Sameness):
        def encode_whole(self, text):
            release.wait(20)
            return np.full(4, 0.5, np.float32)

    try:
        async with Similar(store, Stuck()) as place:
            await place.ask(asked(FRANCE))
            _, headers, _ = await place.ask(asked(OTHER))
            assert headers["x-batuta-cache"] == "miss"
            release.set()
    finally:
        release.set()


async def test_without_the_setting_words_must_be_the_same(store):
    assert AnswerCacheSetting(enabled=True).similarity is None
    async with Place(store) as place:
        for text in (FRANCE, OTHER):
            _, headers, _ = await place.ask(asked(text))
            assert headers["x-batuta-cache"] == "miss"
