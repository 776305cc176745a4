"""A made-up history: two kinds of questions, and a worker that is good at each."""

from random import Random

import numpy as np
from hypothesis import settings

from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.core import PlanningContext, Pool, Question, Worker, WorkerId
from batuta.lab.learners.history import History

ADA, BOB, EVE = (WorkerId(name) for name in ("ada", "bob", "eve"))
WORKERS = (ADA, BOB, EVE)
CITIES = ("France", "Peru", "Japan", "Kenya", "Norway", "Chile", "Egypt", "India", "Spain", "Cuba")
unhurried = settings(deadline=None, max_examples=25)
"""A busy machine is no fault of the code."""
CHEAP = HashedNgrams(buckets=256, dimensions=None)
"""Features that take no time."""


def asked(count, seed):
    """Questions, every other one a sum, and which of them are."""
    rng = Random(seed)
    sums = [at % 2 == 0 for at in range(count)]
    texts = tuple(
        f"Add {rng.randint(1, 99)} and {rng.randint(1, 99)}, then double the sum."
        if is_sum
        else f"Which city is the capital of {rng.choice(CITIES)}, {rng.randint(1900, 2020)}?"
        for is_sum in sums
    )
    return texts, sums


def made(count=120, seed=0, *, answers=False):
    """Ada solves the sums, Bob knows the capitals, Eve is right one time in four."""
    texts, sums = asked(count, seed)
    rng = np.random.default_rng(seed)
    luck_q = rng.random(count) < 0.25
    scores = np.stack([sums, np.logical_not(sums), luck_q], axis=1).astype(np.float32)
    usd = np.tile([0.01, 0.02, 0.001], (count, 1))
    said = tuple(
        tuple("right" if score else f"wrong {m}" for m, score in enumerate(row)) for row in scores
    )
    runs = np.ones(scores.shape, np.int32)
    families = tuple("sums" if is_sum else "capitals" for is_sum in sums)
    return History(
        questions=texts,
        workers=WORKERS,
        scores_qm=scores,
        usd_qm=usd,
        runs_qm=runs,
        families=families,
        answers=said if answers else None,
    )


def pool(*ids, tags=()):
    return Pool(
        tuple(Worker(id=WorkerId(name), model=f"m-{name}", tags=tags) for name in ids or WORKERS)
    )


def context(text, members=None, **options):
    return PlanningContext(question=Question.of(text), pool=members or pool(), **options)
