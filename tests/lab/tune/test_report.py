"""The report of a tuning, and the page that shows it."""

import json
import re
import tomllib
import urllib.request
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import program_spec, worker_spec
from batuta.core import WorkerId
from batuta.gateway.ui.learning import ResultFolder
from batuta.lab.commands.tune import read_original, show_result
from batuta.lab.tune.calibrate import MeasuredShare, WorkerCard, share_of
from batuta.lab.tune.judge import Comparison, Verdict
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.lab.tune.recommend import with_confidence, write_settings
from batuta.lab.tune.report import (
    break_even,
    describe_tuning,
    draw_front,
    report_files,
    write_results,
)
from batuta.lab.tune.stages import TuneStage
from batuta.local.pool import local_spec
from gateway.ui.page_server import PageServer
from lab.tune.test_tuning import tune
from lab.tune.worlds import EXPERTS


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def tuned(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    result, meter, parts, settings = await tune(EXPERTS, 900)
    found = describe_tuning(result, parts, settings, meter)
    write_results(
        folder / "learning/tuned", found, result=result, tasks=parts.search, settings_text=None
    )
    return folder, found


def read_page(url):
    with urllib.request.urlopen(url) as reply:  # noqa: S310 - loopback
        return reply.read().decode()


def test_the_page_shows_what_was_found_and_the_whole_report(tuned):
    folder, found = tuned
    path = folder / "learning/tuned"
    with PageServer(folder).open() as app_state:
        listed = read_page(app_state.url + "/ui/learning")
        mark = ResultFolder(path, path.name, 0.0).mark
        page = read_page(f"{app_state.url}/ui/learning/report/{mark}")
        whole = read_page(f"{app_state.url}/ui/learning/report/{mark}/whole")
    reason = found["recommendation"]["why"][0].split(";")[0]
    assert reason in listed and reason in page
    for figures in found["judged"]:
        assert f"{100 * figures['share']:.1f}" in page, figures["name"]
    assert "bills" in page and "<svg" in whole


def test_dollars_that_only_count_against_the_budget_are_told_apart(tuned, tmp_path, capsys):
    found = tuned[1] | {"confidence": []}
    show_result(found, tmp_path, pool=None, counted=Decimal(str(found["spent"]["usd"])))
    assert "count against the budget" not in capsys.readouterr().out
    show_result(found, tmp_path, pool=None, counted=Decimal(99))
    told = capsys.readouterr().out
    assert f"${found['spent']['usd']:.4f}" in told and "$99.0000 count against the budget" in told


def test_a_tuning_that_ended_early_is_shown_too(tuned, tmp_path):
    folder = tmp_path / "learning/early"
    folder.mkdir(parents=True)
    early = tuned[1] | {"judged": [], "finalists": [], "selection": [], "workflows": []}
    (folder / "report.json").write_text(json.dumps(early))
    with PageServer(tmp_path).open() as app_state:
        mark = ResultFolder(folder, folder.name, 0.0).mark
        assert "A tuned pool" in read_page(f"{app_state.url}/ui/learning/report/{mark}")


async def test_a_report_says_where_its_systems_were_compared(tmp_path):
    """Without a judgement the figures are those of the selection, and no heading says "judged"."""
    result, meter, parts, settings = await tune(EXPERTS, 900, last=TuneStage.SELECT)
    found = describe_tuning(result, parts, settings, meter)
    write_results(tmp_path, found, result=result, tasks=parts.search, settings_text=None)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Compared in the selection on" in report and "## Judged" not in report


@pytest.mark.parametrize("name", ["algebra|sums", "two\nlines", "a \\"])
def test_every_row_of_a_table_has_a_cell_for_every_head(tuned, name):
    """Also if a workflow stops early, which is written with a bar, or a tag has one."""
    stops = Candidate(
        tuple(CandidateStep(StepRole.SOLVE, WorkerId(w)) for w in ("ada", "ben", "cleo")),
        stops=True,
    )
    rows = [row | {"group": name, "workflow": str(stops)} for row in tuned[1]["workflows"]]
    found = tuned[1] | {"groups": [name, *tuned[1]["groups"][1:]], "workflows": rows}
    page = report_files(found)["report.html"]
    assert "|---" not in page, "every table is read as a table"
    assert "solve ada &gt; solve ben | solve cleo</td>" in page
    questions = re.findall(r"ben \| solve cleo</td>\s*<td[^>]*>(.*?)</td>", page)
    assert questions == [str(row["questions"]) for row in rows]


@pytest.mark.parametrize("name", ["algebra|sums", "two\nlines", "a\\b", 'a"b', "bell\a"])
def test_measured_skills_are_valid_settings_whatever_a_tag_is(name):
    measured = share_of([1.0, 0.0], 0.5)
    card = WorkerCard(
        worker=WorkerId("ada"), overall=measured, by_group=(measured,), usd=None, seconds=None,
        failed=0,
    )  # fmt: skip
    advice = {"why": [], "best": "ada", "ultra": None, "mini": None}
    text = write_settings('[[workers]]\nid = "ada"\n', advice, (card,), groups=(name,))
    assert list(tomllib.loads(text)["workers"][0]["skills"]) == [name]


LIMITS = '[limits]\nmax_cost_usd = 1\n\n[[workers]]\nid = "ada"\n'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LIMITS, "[limits]\nmax_rounds = 3\nmax_cost_usd = 1"),
        (LIMITS.replace("max_cost_usd", "max_rounds"), "[limits]\nmax_rounds = 3"),
        (LIMITS.replace("max_cost_usd = 1", "max_rounds = 5"), "[limits]\nmax_rounds = 5"),
        ('[[workers]]\nid = "ada"\n', "[limits]\nmax_rounds = 3"),
        (LIMITS.replace("]\nmax", "]  # mine\nmax"), "[limits]  # mine\nmax_rounds = 3"),
    ],
)
def test_a_selector_that_looks_at_answers_gets_the_rounds_that_it_needs(text, wanted):
    advice = {"why": ["because"], "best": "ada", "ultra": "selector", "mini": None}
    written = write_settings(text, advice, (), groups=(), rounds=3)
    assert wanted in written and written.count("max_rounds") == 1
    assert "max_rounds = 3" not in write_settings(text, advice | {"ultra": None}, (), (), rounds=3)


def with_measured_skills(text):
    """The settings with what was measured of Ada on two questions of roads."""
    measured = share_of([1.0, 0.0], 0.5)
    card = WorkerCard(
        worker=WorkerId("ada"),
        overall=measured,
        by_group=(measured,),
        usd=None,
        seconds=None,
        failed=0,
    )
    advice = {"why": [], "best": "ada", "ultra": None, "mini": None}
    return write_settings(text, advice, (card,), groups=("roads",))


def test_old_skills_are_replaced_in_a_table_of_their_own_too():
    text = '[[workers]]\nid = "ada"\n[workers.skills]\nmaths = 0.2\n\n[server]\nport = 1\n'
    written = tomllib.loads(with_measured_skills(text))
    assert written["workers"] == [
        {"id": "ada", "strength": 0.5, "skills": {"roads": {"share": 0.5, "questions": 2}}}
    ]
    assert written["server"] == {"port": 1}


@pytest.mark.parametrize("skills", ["skills.maths = 0.2", "skills = { maths = 0.2 }"])
def test_old_skills_are_replaced_however_they_are_written(skills):
    text = f'[[workers]]\nid = "ada"\n{skills}\n'
    written = tomllib.loads(with_measured_skills(text))
    assert written["workers"][0]["skills"] == {"roads": {"share": 0.5, "questions": 2}}


@pytest.mark.parametrize(
    "mini",
    [
        '[mini]\nselector = "old"\nexplore = { share = 0.05, usd_per_day = 1 }\n',
        "[mini.explore]\nshare = 0.05\nusd_per_day = 1\n",
        'ultra.conductor = "old"\n[mini]\nexplore = { share = 0.05, usd_per_day = 1 }\n',
        'ultra = "old"\n[mini]\nexplore = { share = 0.05, usd_per_day = 1 }\n',
    ],
)
def test_a_system_that_learns_while_it_serves_still_does(mini):
    advice = {"why": [], "best": "ada", "ultra": "selector", "mini": "selector-mini"}
    text = write_settings(f'{mini}[[workers]]\nid = "ada"\n', advice, (), groups=())
    explored = {"share": 0.05, "usd_per_day": 1}
    assert tomllib.loads(text) == {
        "mini": {"selector": "selector-mini", "explore": explored},
        "ultra": {"selector": "selector"},
        "workers": [{"id": "ada"}],
    }


def test_settings_keep_the_texts_of_the_original_to_the_letter(tmp_path):
    text = '\ufeff[[workers]]\r\nid = "ada"\r\ndescription = "two\u2028lines\x85"\r\n'
    (tmp_path / "pool.toml").write_bytes(text.encode())
    read = read_original(str(tmp_path / "pool.toml"), {}, tmp_path, ())
    advice = {"why": [], "best": "ada", "ultra": None, "mini": None}
    written = with_confidence(write_settings(read, advice, (), groups=()), "confidence.json")
    found = tomllib.loads(written)["workers"]
    assert found == [{"id": "ada", "description": "two\u2028lines\x85"}]


async def test_settings_that_are_tuned_again_have_the_newer_reasons_alone(tuned):
    pool = '# mine\n[[workers]]\nid = "ada"\n'
    first = write_settings(pool, tuned[1]["recommendation"], (), groups=())
    advice = {"why": ["Nothing was judged, so"], "best": "ada", "ultra": None, "mini": None}
    again = write_settings(first, advice, (), groups=())
    wanted = ["# Nothing was judged, so", "# mine"]
    assert [line for line in again.splitlines() if line.startswith("#")] == wanted
    third = write_settings(again, tuned[1]["recommendation"], (), groups=())
    assert third == first and "# mine" in third


async def test_settings_that_are_written_elsewhere_find_the_files_of_the_original(
    tmp_path, monkeypatch
):
    """From any folder, as a server is started, and again after the next tuning."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "best").mkdir()  # named like a conductor, and no path
    (mine / "confidence.json").write_text('{"format": 1, "conductors": {}}')
    (mine / "flow.toml").write_text("")
    (mine / "history.jsonl").write_text("")
    (mine / "pool.toml").write_text(
        '[[workers]]\nid = "ada"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[models.mine]\nworkflow = "flow.toml"  # mine\n[models.best]\nconductor = "best"\n'
        "[baselines]\nhistory = 'history.jsonl'\n[confidence]\nfile = \"confidence.json\"\n"
    )
    monkeypatch.chdir(tmp_path)
    first, second = Path("runs/first"), tmp_path / "second"
    for out, source in ((first, mine / "pool.toml"), (second, first / "batuta.toml")):
        out.mkdir(parents=True)
        text = read_original(str(source), {}, out, ())
        (out / "batuta.toml").write_text(text)
        found = tomllib.loads(text)
        assert found["models"]["best"] == {"conductor": "best"}
        paths = (found["models"]["mine"]["workflow"], found["baselines"]["history"],
                 found["confidence"]["file"])  # fmt: skip
        for path, name in zip(
            paths, ("flow.toml", "history.jsonl", "confidence.json"), strict=True
        ):
            assert (out / path).resolve() == (mine / name).resolve()
    kept = with_confidence(text, "confidence.json")
    assert tomllib.loads(kept)["confidence"] == {"file": "confidence.json"}, "the newer fit"


def compared(nominee, opponent, saved):
    return Comparison(
        nominee=nominee, opponent=opponent, verdict=Verdict.CHEAPER, questions=20, difference=0.0,
        low=None, high=None, p=None, p_corrected=None, detectable=None, usd_saved=saved,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ultra", "mini", "wanted"),
    [
        ("selector", None, {"ultra": 5, "mini": None}),
        ("selector-mini", "selector-mini", {"ultra": 10, "mini": 10}),
        (None, None, {"ultra": None, "mini": None}),
    ],
)
def test_a_tuning_has_paid_for_itself_by_the_system_that_is_recommended(ultra, mini, wanted):
    pairs = [("ultra", "best single", 2.0), ("mini", "best single", 1.0), ("ultra", "mini", 4.0)]
    advice = {"ultra": ultra, "mini": mini}
    assert break_even([compared(*pair) for pair in pairs], advice, 10.0) == wanted


def test_the_figure_has_no_dollars_that_are_unknown():
    one = {"name": "a", "share": 0.5, "low": 0.4, "high": 0.6, "usd": 0.1, "calls": 2.0}
    assert "dollars per question" in draw_front([one, one | {"usd": 0.0}])
    assert "calls per question" in draw_front([one, one | {"usd": None}])


def test_the_settings_that_are_changed_are_those_that_were_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batuta.toml").write_text("# here", encoding="utf-8")
    (tmp_path / "other.toml").write_text("# other", encoding="utf-8")
    assert read_original(None, {}, tmp_path, ()) == "# here"
    assert read_original(None, {"BATUTA_CONFIG": "other.toml"}, tmp_path, ()) == "# other"
    assert read_original("other.toml", {}, tmp_path, ()) == "# other"
    assert read_original("discover", {}, tmp_path, ()) == ""


def test_workers_that_no_file_names_are_written_with_what_was_measured(tmp_path):
    """With `--pool local` the tuned settings had neither strengths nor the worker of programs."""
    program = program_spec(WorkerSetting(id="python", model="python", provider="python"))
    specs = (local_spec("qwen-1.5b"), local_spec("smol"), program)
    share = MeasuredShare(questions=9, share=0.5, low=0.2, high=0.8, shrunk=0.4)
    cards = [
        WorkerCard(worker=spec.worker.id, overall=share, by_group=(share,), usd=0.0, seconds=None, failed=0)
        for spec in specs
    ]  # fmt: skip
    advice = {"why": [], "best": "smol", "ultra": None, "mini": None}
    (tmp_path / "rules.toml").write_text("[limits]\nmax_rounds = 2\n", encoding="utf-8")
    workers = [replace(spec.worker, strength=0.5) for spec in specs]
    for pool in ("local", str(tmp_path / "rules.toml")):
        original = read_original(pool, {}, tmp_path, specs)
        text = write_settings(original, advice, cards, groups=("maths",), pool=workers)
        settings = tomllib.loads(text)
        assert (settings.get("limits") == {"max_rounds": 2}) is (pool != "local")
        *models, runs = (
            worker_spec(WorkerSetting(**one), {}).worker for one in settings["workers"]
        )
        assert [replace(one, skills=()) for one in models] == workers[:2]
        assert {skill.share for one in models for skill in one.skills} == {0.4}
        assert runs == program.worker, "what runs programs has no measurements"
