"""A tuning on recorded answers: what is shown on families left out, and the command."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest

from batuta.conductors.selector import open_selector
from batuta.core import Task, TaskId
from batuta.lab.baselines import open_cascade
from batuta.lab.learners.history import history_from_record
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes
from batuta.lab.tune.judge import Verdict
from batuta.lab.tune.record_options import (
    CASCADE,
    MINI,
    SINGLE,
    VOTE,
    AskOne,
    OptionTrial,
    RecordSettings,
    choose_option,
    fit_options,
    student_quantile,
    try_options,
)
from batuta.lab.tune.record_tuning import (
    describe_record_tuning,
    nominate_options,
    split_record,
    write_record_results,
)

WORKERS = ("ada", "ben", "cleo", "dora")
WORDS = ("river", "market", "engine", "garden", "letter", "castle", "violin", "harbour", "winter",
         "bridge", "needle", "carpet", "window", "forest", "copper")  # fmt: skip
VOTING = (0.64, 0.62, 0.62, 0.6)


def made_record(shares_of, families=15, each=40, seed=0):
    """Workers who err apart; `shares_of` a family's number gives how often each is right."""
    rng = np.random.default_rng(seed)
    count = families * each
    right = np.array([rng.random(len(WORKERS)) < shares_of(n // each) for n in range(count)])
    wrong = rng.integers(1, 60, right.shape)
    alike = np.array([shares_of(n // each).min() < 0.2 for n in range(count)])
    wrong[alike] = 1
    return RecordedOutcomes(
        name="made",
        tasks=tuple(
            Task(
                id=TaskId(f"q{n}"),
                question=f"What of the {WORDS[n // each]} in case {n}?",
                target="0",
                grader=GRADER,
            )
            for n in range(count)
        ),
        families=tuple(WORDS[n // each] for n in range(count)),
        models=WORKERS,
        scores_qms=right.astype(np.float32)[:, :, None],
        answers_qms=np.where(right, 0, wrong).astype(np.int32)[:, :, None],
        answers=tuple(str(n) for n in range(60)),
    )


def vote_everywhere(_):
    return np.array(VOTING)


def vote_here_and_there(family):
    """In a third of the families the others make the same mistakes, and outvote the best."""
    return np.array((0.9, 0.1, 0.1, 0.1) if family % 3 == 0 else VOTING)


def outcome_lines(record, unpriced=()):
    for q, task in enumerate(record.tasks):
        told = {
            name: {
                "answers": [record.answer((q, m, 0))],
                "scores": [float(record.scores_qms[q, m, 0])],
                **({} if name in unpriced else {"usd": 0.001 * (m + 1)}),
            }
            for m, name in enumerate(record.models)
        }
        yield json.dumps({"question": task.question, "family": record.families[q], "workers": told})


@pytest.mark.parametrize(
    ("freedom", "chance", "true"), [(4, 0.975, 2.776), (10, 0.975, 2.228), (60, 0.95, 1.671)]
)
def test_students_quantile_is_that_of_the_tables(freedom, chance, true):
    assert student_quantile(chance, freedom) == pytest.approx(true, rel=0.01)


@pytest.mark.slow
def test_what_gains_on_every_family_left_out_is_nominated_and_does_so_on_new_ones():
    record = made_record(vote_everywhere)
    parts = split_record(record, seed=1)
    assert parts.has_new_families
    asked, judged = ({record.families[q] for q in some} for some in (parts.known, parts.judged))
    assert not asked & judged
    nominees = nominate_options(record, parts.known, RecordSettings(call_weight=0.005, seed=1))
    assert nominees.ultra in {CASCADE, VOTE} and nominees.mini == SINGLE
    trial = next(one for one in nominees.trials if one.name == nominees.ultra)
    assert trial.is_shown and trial.families == len(asked)
    fresh = history_from_record(record, parts.judged)
    tuned, single = (nominees.fitted[name](fresh) for name in (nominees.ultra, SINGLE))
    assert tuned.earned_n.mean() > single.earned_n.mean() + 0.03


@pytest.mark.slow
def test_a_gain_that_new_families_may_lose_again_is_none():
    record = made_record(vote_here_and_there)
    history = history_from_record(record)
    family_n = np.unique(np.asarray(history.families), return_inverse=True)[1]
    (vote,) = try_options(history, family_n, (VOTE,), RecordSettings(call_weight=0.0))
    assert not vote.is_shown
    nominees = nominate_options(record, split_record(record, 0).known, RecordSettings())
    assert (nominees.ultra, nominees.mini) == (SINGLE, SINGLE)


def test_the_cascade_goes_on_only_where_that_is_worth_its_price():
    history = history_from_record(made_record(vote_everywhere))
    cheap, usual, dear = (
        fit_options([CASCADE], history, RecordSettings(call_weight=weight))[CASCADE](history)
        for weight in (0.001, 0.03, 0.5)
    )
    assert cheap.calls_n.mean() > usual.calls_n.mean() > dear.calls_n.mean() == 1
    assert len(set(cheap.calls_n.tolist())) > 1, "it looks at the answers"
    assert cheap.earned_n.mean() > dear.earned_n.mean()


def test_with_few_families_the_best_single_worker_stays_and_the_sentence_says_why():
    record = made_record(vote_everywhere, families=4)
    parts = split_record(record, seed=0)
    nominees = nominate_options(record, parts.known, RecordSettings())
    assert nominees.ultra == SINGLE and not nominees.trials
    found = describe_record_tuning(record, parts, nominees, RecordSettings())
    best = record.credit_qm()[parts.known].mean(axis=0).argmax()
    assert found["recommendation"]["best"] == nominees.best == WORKERS[best]
    assert all("too few" in reason for reason in found["recommendation"]["why"])
    assert all(one["usd"] is None for one in found["judged"]), "nobody recorded dollars"


def test_of_options_that_are_shown_the_surest_is_taken():
    trial = OptionTrial(name="a", families=9, questions=90, gain=0.05, merit=0.04, low=0.01,
                        foreseen=0.0, calls=2.0)  # fmt: skip
    risky = OptionTrial(name="b", families=9, questions=90, gain=0.09, merit=0.08, low=0.03,
                        foreseen=-0.02, calls=2.0)  # fmt: skip
    assert choose_option([trial, risky]) is trial
    assert choose_option([risky]) is None
    assert choose_option([trial], lambda name: name != "a") is None


def test_a_worker_alone_costs_what_was_recorded(tmp_path):
    path = tmp_path / "outcomes.jsonl"
    path.write_text("\n".join(outcome_lines(made_record(vote_everywhere, families=5))) + "\n")
    from batuta.lab.tasks.recorded import load_recorded

    history = history_from_record(load_recorded(str(path)))
    assert AskOne(2)(history).usd_n == pytest.approx(np.full(200, 0.003))


def test_a_worker_whose_dollars_were_not_recorded_is_not_cheaper(tmp_path):
    path = tmp_path / "outcomes.jsonl"
    lines = outcome_lines(made_record(vote_everywhere, families=4), unpriced=("ben",))
    path.write_text("\n".join(lines) + "\n")
    from batuta.lab.tasks.recorded import load_recorded

    record = load_recorded(str(path))
    parts = split_record(record, seed=0)
    nominees = nominate_options(record, parts.known, RecordSettings())
    ben = record.models.index("ben")
    nominees = replace(nominees, ultra="ben", fitted=nominees.fitted | {"ben": AskOne(ben)})
    found = describe_record_tuning(record, parts, nominees, RecordSettings())
    usd = {one["name"]: one["usd"] for one in found["judged"]}
    assert usd["ultra"] is None and usd["mini"] > 0
    assert found["comparisons"][0]["usd_saved"] is None
    assert found["comparisons"][0]["verdict"] != Verdict.CHEAPER


@pytest.mark.slow
def test_the_cascade_that_was_nominated_is_in_the_folder(tmp_path):
    record = made_record(vote_everywhere)
    parts = split_record(record, seed=1)
    settings = RecordSettings(call_weight=0.005, seed=1)
    nominees = nominate_options(record, parts.known, settings)
    found = describe_record_tuning(record, parts, nominees, settings)
    write_record_results(tmp_path, found, nominees)
    assert nominees.ultra == CASCADE
    assert open_cascade(tmp_path / "selector").selector.workers == WORKERS
    assert "| cascade |" in (tmp_path / "report.md").read_text()
    both = replace(
        nominees,
        mini=MINI,
        fitted=nominees.fitted
        | fit_options([MINI], history_from_record(record, parts.known), settings),
    )
    found = describe_record_tuning(record, parts, both, replace(settings, only_proven=False))
    write_record_results(tmp_path / "both", found, both)
    assert open_cascade(tmp_path / "both/selector").selector.workers == WORKERS
    assert open_selector(tmp_path / "both/selector-mini").workers == WORKERS
    assert found["recommendation"]["mini"] in {None, "selector-mini"}


@pytest.fixture
def batuta(tmp_path, command_line):
    (tmp_path / "outcomes.jsonl").write_text(
        "\n".join(outcome_lines(made_record(vote_everywhere))) + "\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "400"}

    def run(*args):
        return command_line.run("tune", *args, cwd=tmp_path, env=env)

    return run


def test_the_command_tunes_a_record_and_calls_nobody(batuta, tmp_path):
    done = batuta("--tasks", "recorded:outcomes.jsonl", "--seed", "1", "--out", "tuned", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["spent"] == {"usd": 0.0, "calls": 0}
    assert {one["name"] for one in found["judged"]} == {"ultra", "mini", "best single"}
    assert all(one["usd"] > 0 for one in found["judged"])
    assert json.loads((tmp_path / "tuned/report.json").read_text()) == found
    assert "<svg" in (tmp_path / "tuned/report.html").read_text()
    again = batuta("--tasks", "recorded:outcomes.jsonl", "--seed", "1", "--out", "tuned")
    assert "spent: 0 calls" in again.stdout
    assert "batuta-mini: the best single worker, ada" in again.stdout


def test_the_command_says_how_a_record_is_divided(batuta):
    done = batuta("--tasks", "recorded:outcomes.jsonl", "--check")
    assert done.returncode == 0
    assert re.search(
        r"480 questions of 12 families to learn from, 120 of held-out families", done.stdout
    )


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--pool", "rehearsal"), "--pool does not apply to a record"),
        (("--stages", "calibrate"), "--stages does not apply to a record"),
        (("--limit", "20"), "20 questions that every worker answered, too few"),
    ],
)
def test_what_says_nothing_of_a_record_is_refused_in_a_sentence(batuta, more, sentence):
    done = batuta("--tasks", "recorded:outcomes.jsonl", *more)
    assert done.returncode == 2 and sentence in done.stderr
