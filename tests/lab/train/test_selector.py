"""`batuta train selector`: outcomes in, a folder out, and in one line what it is worth."""

import resource
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.selector import open_selector
from batuta.core import WorkerId
from batuta.errors import ConfigError, SourceError, StoreError
from batuta.lab.baselines import open_cascade
from batuta.lab.commands.train import selector, training_summary
from batuta.lab.learners.history import History, RunSamples, write_history
from batuta.lab.learners.selector_training import SelectorRecipe
from batuta.lab.train.selector_training import read_outcomes, train_selector
from data_folder import needs_data

SMALL = HashedNgrams(buckets=512, dimensions=8)
KINDS = {
    "Add {} and {}.": (0.9, 0.1),
    "Rhyme with {} and {}.": (0.1, 0.8),
    "Date {} {}?": (0.5, 0.5),
}

app = typer.Typer()
app.command()(selector)


def history(number=60):
    rng = Random(1)
    rows = [
        (
            kind.format(rng.randrange(999), rng.randrange(999)),
            [float(rng.random() < p) for p in odds],
            kind,
        )
        for _ in range(number)
        for kind, odds in KINDS.items()
    ]
    shape = (len(rows), 2)
    return History(
        questions=tuple(row[0] for row in rows),
        workers=(WorkerId("sums"), WorkerId("words")),
        scores_qm=np.asarray([row[1] for row in rows], np.float32),
        usd_qm=np.full(shape, np.nan),
        runs_qm=np.ones(shape, np.int32),
        families=tuple(row[2] for row in rows),
    )


def test_what_is_trained_is_measured_on_questions_that_it_never_saw(tmp_path):
    trained = train_selector(history(), tmp_path / "mini", SelectorRecipe(features=SMALL), seed=3)
    assert (trained.training_questions, trained.held_out_questions, trained.workers) == (144, 36, 2)
    assert trained.best_single + 0.1 < trained.credit <= trained.oracle <= 1
    assert open_selector(trained.folder).name == trained.name


def test_the_same_seed_trains_the_same_selector(tmp_path):
    recipe = SelectorRecipe(features=SMALL)
    names = [
        train_selector(history(20), tmp_path / "mini", recipe, seed=seed).name for seed in (1, 1, 2)
    ]
    assert names[0] == names[1] != names[2]


def test_the_command_writes_a_folder_and_says_in_one_line_what_it_is_worth(tmp_path):
    write_history(history(), tmp_path / "h.jsonl")
    out = tmp_path / "mini"
    told = CliRunner().invoke(
        app, ["--history", str(tmp_path / "h.jsonl"), "--out", str(out), "--name", "duo"]
    )
    assert told.exit_code == 0, told.output
    (line,) = told.stdout.splitlines()
    assert line.startswith("selector/duo@") and "best single worker" in line
    opened = open_selector(out)
    assert opened.workers[opened.choose_indices(["Rhyme with 17 and 4."])[0]] == "words"


def test_outcomes_with_their_answers_teach_the_cascade_too(tmp_path):
    plain = history()
    right = plain.scores_qm[:, :, None]
    samples = RunSamples(right, np.where(right > 0, 0, 1).astype(np.int32), ("4", "5"))
    write_history(replace(plain, samples=samples), tmp_path / "h.jsonl")
    out = tmp_path / "duo"
    told = CliRunner().invoke(
        app, ["--history", str(tmp_path / "h.jsonl"), "--out", str(out), "--no-search"]
    )
    assert told.exit_code == 0, told.output
    assert ", the cascade " in told.stdout and " calls" in told.stdout
    assert open_cascade(out).selector.digest == open_selector(out).digest


def test_a_question_whose_answers_are_not_recorded_is_no_wrong_answer_of_the_cascade(tmp_path):
    plain = history()
    credit = np.ones((*plain.scores_qm.shape, 1), np.float32)
    answers = np.zeros(credit.shape, np.int32)
    credit[::3], answers[::3] = np.nan, -1
    taught = replace(
        plain,
        scores_qm=np.ones_like(plain.scores_qm),
        samples=RunSamples(credit, answers, ("4",)),
    )
    found = train_selector(taught, tmp_path / "mini", SelectorRecipe(features=SMALL))
    assert found.cascade == (1.0, 1.0)


def test_where_one_worker_was_asked_each_question_what_is_compared_is_known(tmp_path):
    """The mean of each credit over other questions could exceed the oracle's, or be no number."""
    sparse = history(9)
    asked = np.arange(len(sparse.questions)) % 3 == 0
    scores = np.where(np.stack([~asked, asked], axis=1), sparse.scores_qm, np.nan)
    found = [
        train_selector(
            replace(sparse, scores_qm=scores.astype(np.float32)), tmp_path / "mini",
            SelectorRecipe(features=SMALL), seed=seed,
        )
        for seed in range(4)
    ]  # fmt: skip
    for one in found:
        assert one.compared_questions <= one.held_out_questions == 6
        assert (one.credit is None) == (one.compared_questions == 0)
        assert one.credit is None or one.credit <= one.oracle
        assert "nan" not in training_summary(one)
    assert any("with the scores to compare" in training_summary(one) for one in found)


def test_what_is_missing_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="give --history FILE or --tasks recorded:NAME"):
        read_outcomes(None, None)
    with pytest.raises(ConfigError, match="name a set as recorded:NAME"):
        read_outcomes(None, "math500")
    with pytest.raises(SourceError, match="there is no recorded set 'none'"):
        read_outcomes(None, "recorded:none", tmp_path)
    with pytest.raises(SourceError, match="there is no file"):
        read_outcomes(tmp_path / "none.jsonl", None)
    with pytest.raises(SourceError, match="a selector needs far more"):
        train_selector(history(1), tmp_path, SelectorRecipe(features=SMALL))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        train_selector(history(20), tmp_path / "file", SelectorRecipe(features=SMALL))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as a disk that fills up
    try:
        with pytest.raises(StoreError, match="full cannot be written"):
            train_selector(history(20), tmp_path / "full", SelectorRecipe(features=SMALL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@needs_data("recorded/routellm")
def test_a_recorded_set_teaches_too():
    found = read_outcomes(None, "recorded:routellm/gsm8k")
    assert len(found.workers) == 2 and len(found.questions) == 1319
