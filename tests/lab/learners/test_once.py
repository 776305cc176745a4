"""Features that read each text once give what the plain ones give."""

import numpy as np
import pytest

from batuta.conductors.feature_kinds import load_features
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.core import WorkerId
from batuta.errors import ConfigError
from batuta.lab.learners.cached_features import CachedFeatures
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_training import SelectorRecipe, fit_selector

PLAIN = HashedNgrams(buckets=512, dimensions=8)
TEXTS = [
    *(f"What is {n} plus {n * 7}?" for n in range(30)),
    *(f"Which word comes {n}th in the alphabet: pear, fig, plum?" for n in range(30)),
]
OTHERS = ["", "What is 3 plus 21?", "a a a a a a", "Grüße, 世界"]


@pytest.mark.parametrize("features", [PLAIN, HashedNgrams(buckets=64, dimensions=None)])
def test_vectors_are_those_of_the_plain_features_to_the_bit(features):
    plain, once = features.fit(TEXTS), CachedFeatures(features).fit(TEXTS)
    for _ in range(2):
        np.testing.assert_array_equal(once(OTHERS), plain(OTHERS))
        np.testing.assert_array_equal(once([*OTHERS, *TEXTS]), plain([*OTHERS, *TEXTS]))
    assert once([]).shape == plain([]).shape


def test_what_is_saved_is_the_plain_features():
    once = CachedFeatures(PLAIN).fit(TEXTS)
    np.testing.assert_array_equal(load_features(*once.save())(OTHERS), once(OTHERS))
    assert CachedFeatures(PLAIN).name == once.name == PLAIN.name
    assert CachedFeatures(PLAIN).save()[0] == PLAIN.save()[0]


def test_the_same_texts_are_fitted_once_and_others_anew():
    once = CachedFeatures(PLAIN)
    assert once.fit(TEXTS) is once.fit(list(TEXTS))
    assert once.fit(TEXTS[:40]) is not once.fit(TEXTS)
    np.testing.assert_array_equal(once.fit(TEXTS[:40])(OTHERS), PLAIN.fit(TEXTS[:40])(OTHERS))


def test_unfitted_it_refuses_and_of_nothing_it_cannot_be_fitted():
    with pytest.raises(ConfigError, match="not fitted"):
        CachedFeatures(PLAIN)(OTHERS)
    with pytest.raises(ConfigError, match="at least one training question"):
        CachedFeatures(PLAIN).fit([])


def test_a_selector_is_the_same_with_either():
    rng = np.random.default_rng(0)
    scores = (rng.random((len(TEXTS), 3)) < [0.4, 0.5, 0.6]).astype(np.float32)
    history = History(
        questions=tuple(TEXTS), workers=tuple(map(WorkerId, "abc")), scores_qm=scores, usd_qm=np.full(scores.shape, np.nan),
        runs_qm=np.ones(scores.shape, np.int32), families=("sum",) * 30 + ("word",) * 30,
    )  # fmt: skip
    plain, once = (
        fit_selector(history, SelectorRecipe(features=features))
        for features in (PLAIN, CachedFeatures(PLAIN))
    )
    assert plain.digest == once.digest
    assert plain.choose_indices(OTHERS) == once.choose_indices(OTHERS)
