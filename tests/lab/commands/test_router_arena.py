"""`batuta tasks export` as a person runs it."""

import json

import pytest
from typer.testing import CliRunner

from batuta.conductors.selector import save_selector
from batuta.errors import ConfigError, SourceError
from batuta.lab.commands.tasks import app
from batuta.lab.learners.history import history_from_record, write_history
from batuta.lab.learners.selector_training import fit_selector
from lab.evals.record import made_up

ROWS = [{"global index": f"q{n}", "prompt": f"Question {500 + n} of {family}?"}
        for n, family in enumerate(("words", "sums", "words", "sums"))]  # fmt: skip


@pytest.fixture(scope="module")
def known():
    return history_from_record(made_up())


def run(*args):
    done = CliRunner().invoke(app, ["export", *map(str, args)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_selector_predicts_and_says_what_stays(known, tmp_path):
    save_selector(fit_selector(known), tmp_path / "mini")
    data, other, names = (tmp_path / f"{name}.json" for name in ("data", "other", "names"))
    data.write_text(json.dumps(ROWS))
    other.write_text(json.dumps([{**row, "prompt": ROWS[0]["prompt"]} for row in ROWS]))
    names.write_text('{"nimble": "gpt-4o-mini"}')
    out = tmp_path / "mine.json"
    done = run("routerarena", data, "--conductor", tmp_path / "mini", "--out", out, "--names", names,
               "--rephrased", other)  # fmt: skip
    written = json.loads(out.read_text())
    assert [one["prediction"] for one in written] == ["gpt-4o-mini", "strong"] * 2
    assert "4 predictions, 2 models" in done.output
    assert "choices for rephrased questions: 50.0 % stay" in done.output


def test_a_router_is_fitted_on_outcomes(known, tmp_path):
    write_history(known, tmp_path / "outcomes.jsonl")
    (tmp_path / "data.json").write_text(json.dumps(ROWS))
    out = tmp_path / "mine.json"
    run("routerarena", tmp_path / "data.json", "--history", tmp_path / "outcomes.jsonl",
        "--system", "knn", "--out", out)  # fmt: skip
    assert [one["prediction"] for one in json.loads(out.read_text())] == ["nimble", "strong"] * 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chess", "data.json"], "there is no format 'chess'"),
        (["routerarena", "data.json"], "name one system that chooses"),
        (
            ["routerarena", "data.json", "--conductor", "a", "--history", "b"],
            "name one system that chooses",
        ),
        (["routerarena", "data.json", "--history", "b", "--system", "moa"], "moa does not learn"),
    ],
)
def test_wrong_use_is_a_sentence(args, words):
    with pytest.raises(ConfigError, match=words):
        run(*args)


def test_names_that_are_none(known, tmp_path):
    save_selector(fit_selector(known), tmp_path)
    (tmp_path / "names.json").write_text("[]")
    with pytest.raises(SourceError, match="is not a JSON object"):
        run("routerarena", "data.json", "--conductor", tmp_path, "--names", tmp_path / "names.json")
