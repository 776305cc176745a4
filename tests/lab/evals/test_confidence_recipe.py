"""What the recipe of fitted probabilities says of families: how far they differ, and what even perfect probabilities miss by."""

import importlib.util
from pathlib import Path

import numpy as np

PLACE = Path(__file__).parents[3] / "recipes" / "confidence" / "families.py"


def load_families():
    spec = importlib.util.spec_from_file_location("families", PLACE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(variance, families=60, each=40, seed=1):
    rng = np.random.default_rng(seed)
    odds = rng.normal(0.5, 1.5, families * each)
    family = np.repeat(np.arange(families), each)
    effect = rng.normal(0, np.sqrt(variance), families)[family]
    sure = 1 / (1 + np.exp(-odds))
    right = (rng.random(len(odds)) < 1 / (1 + np.exp(-odds - effect))).astype(float)
    return sure, right, family


def test_the_spread_of_families_is_found_again():
    families = load_families()
    for variance, low, high in ((4.0, 2.6, 5.6), (0.0, 0.0, 0.1)):
        assert low <= families.family_variance(*draw(variance)) <= high


def test_perfect_probabilities_miss_by_more_on_few_families():
    families = load_families()
    sure, _, family = draw(0.0)
    alike = families.perfect_errors(sure, family, 1e-3).mean()
    many = families.perfect_errors(sure, family, 4.0).mean()
    few = families.perfect_errors(sure, family // 10, 4.0).mean()
    assert alike < 0.03 < many < few
