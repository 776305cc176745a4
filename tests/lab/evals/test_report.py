"""The report's form, its unknowns, its figures."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from evaluated import evaluate_task_set, result, subject, task_set

from batuta.errors import ConfigError
from batuta.lab.evals import (
    EvalOptions,
    Evaluation,
    MatchedBudget,
    ResultLog,
    find_system,
    report_files,
)
from batuta.lab.evals.html_report import render_page
from batuta.lab.evals.markdown_report import markdown_table, render_markdown, table_rows
from batuta.lab.evals.plots import draw_figures
from batuta.lab.evals.report import build_report, summarize_runs
from batuta.lab.evals.report_files import publish_report_index
from batuta.lab.evals.result_log import StepSummary

pytestmark = pytest.mark.anyio
KEYS = {"n", "accuracy", "ci95", "tokens", "usd", "calls", "steps", "seconds"}


class TestSummary:
    def test_means_are_of_scored_runs(self):
        found = summarize_runs([
            result("a", 1.0, tokens=10, calls=1, seconds=1.0, steps=(StepSummary("w", "solve"),) * 3),
            result("b", 0.0, tokens=30, calls=3, seconds=2.0, steps=(StepSummary("w", "solve"),)),
            result("c", None, unscored="outage", tokens=999, calls=99, outcome="failed"),  # pyright: ignore[reportArgumentType]
        ])  # fmt: skip
        assert found.keys() >= KEYS
        assert (found["n"], found["accuracy"], found["tokens"], found["calls"]) == (2, 0.5, 20, 2)
        assert (found["steps"], found["seconds"], found["usd"]) == (2, 1.5, 0.001)
        low, high = found["ci95"]
        assert 0 <= low < 0.5 < high <= 1
        assert (found["unscored"], found["unscored_because"]) == (1, {"outage": 1})
        assert found["outcomes"] == {"answered": 2, "failed": 1}

    def test_one_call_without_a_price_makes_the_dollars_unknown(self):
        assert summarize_runs([result("a"), result("b", usd=None)])["usd"] is None
        assert summarize_runs([result("a", usd=Decimal(0))])["usd"] == 0.0

    def test_one_missing_count_of_many_does_not_blank_the_column(self):
        runs = [result(f"t{n}", tokens=10 if n else None) for n in range(20)]
        found = summarize_runs(runs)
        assert (found["tokens"], found["tokens_unknown"], found["usd_unknown"]) == (10, 1, 0)

    def test_one_missing_count_of_three_does_not_blank_the_column_and_two_do(self):
        runs = [result(f"t{n}", tokens=10 * n or None) for n in range(3)]
        assert summarize_runs(runs)["tokens"] == 15
        assert summarize_runs([*runs, result("t3", tokens=None)])["tokens"] is None

    def test_of_nothing_scored_nothing_is_known(self):
        found = summarize_runs([result("a", None, unscored="outage")])  # pyright: ignore[reportArgumentType]
        assert (found["n"], found["accuracy"], found["ci95"], found["usd"]) == (0, None, None, None)

    def test_parts(self):
        found = summarize_runs([
            result("a", 1.0, difficulty=1.0, family="x", calls=2),
            result("b", 0.0, difficulty=2.0, family="x", calls=4),
            result("c", 1.0, difficulty=2.0, family="y", calls=6),
            result("d", 1.0, difficulty=None, family="y"),
        ])  # fmt: skip
        assert found["by_difficulty"] == {
            "1": {"n": 1, "accuracy": 1.0, "steps": 1.0, "calls": 2.0, "depth": 1.0},
            "2": {"n": 2, "accuracy": 0.5, "steps": 1.0, "calls": 5.0, "depth": 1.0},
        }
        assert {name: part["accuracy"] for name, part in found["by_family"].items()} == {
            "x": 0.5,
            "y": 1.0,
        }

    def test_several_seeds_widen_nothing_and_count_all(self):
        runs = [result(f"t{n}", float(n % 2), seed=s) for n in range(20) for s in (0, 1)]
        found = summarize_runs(runs)
        assert found["n"] == 40 and found["accuracy"] == 0.5
        assert found["ci95"][1] - found["ci95"][0] > 0.3


async def an_evaluation(tmp_path, *names, tasks=None, **options):
    with ResultLog(tmp_path) as ledger:
        return await evaluate_task_set(
            subject(simulated=True, **options),
            tasks or task_set(12, 6),
            names=names,
            options=EvalOptions(),
            result_log=ledger,
        )


class TestReport:
    async def test_it_is_json_with_every_system(self, tmp_path):
        names = ("good", "fair", "ultra", "oracle", "best-single")
        found = build_report(await an_evaluation(tmp_path, *names), "batuta eval")
        assert json.loads(json.dumps(found)) == found
        assert list(found["systems"]) == list(names)
        for figures in found["systems"].values():
            assert figures.keys() >= KEYS
            assert figures["ci95"][0] <= figures["accuracy"] <= figures["ci95"][1]
        assert found["references"] == ["oracle"] and found["simulated"] is True
        assert found["calibration"]["strengths"]["good"] == 1.0
        assert found["differences"]["against"] == "good"
        bad = found["differences"]["systems"]["fair"]
        assert bad["questions"] == 12 and bad["test"] == "McNemar" and bad["mean"] == -0.5
        assert bad["p"] == pytest.approx(2 * 0.5**6) and bad["p"] <= bad["p_corrected"] <= 1

    async def test_the_markdown_says_what_must_be_known(self, tmp_path):
        names = ("fair", "ultra", "oracle", "best-single")
        evaluation = await an_evaluation(tmp_path, *names, tasks=task_set(12))
        text = render_markdown(build_report(evaluation, "batuta eval --tasks x"))
        for words in (
            "The workers are simulated",
            "Command: `batuta eval --tasks x`",
            "| (oracle) |",
            "no other questions to measure the workers on",
            "Seconds were measured with up to 63 other runs",
            "## Against fair, on the same questions",
            "## Right % by family",
            "## Depth by difficulty",
        ):
            assert words in text, words
        main = next(part for part in text.split("\n\n") if part.startswith("| system | right"))
        assert len({line.count("|") for line in main.splitlines()}) == 1

    async def test_unscored_runs_and_unknown_dollars_are_said(self, tmp_path):
        evaluation = await an_evaluation(tmp_path, "good", price=None)
        lost = (
            *evaluation.results["good"][1:],
            result("t0", None, unscored="outage", system="good"),  # pyright: ignore[reportArgumentType]
        )
        broken = Evaluation(
            parts=evaluation.parts, options=EvalOptions(sub_pool=2), systems=evaluation.systems, results={"good": lost}, strengths={},
            budgets=(MatchedBudget(of="good", what="calls", amount=3.2, k=4),),
        )  # fmt: skip
        text = render_markdown(build_report(broken))
        assert "11 (+1 unscored)" in text
        assert "not counted as wrong: good 1" in text
        assert "2 random workers" in text and "with 4 samples" in text
        assert next(row for row in table_rows(build_report(broken)) if row[0] == "good")[7] == "–"

    def test_rows_are_sorted_best_first_and_survive_nothing_scored(self):
        best, none = (
            summarize_runs([result("a")]),
            summarize_runs([result("a", None, unscored="outage")]),  # pyright: ignore[reportArgumentType]
        )
        bare = {"references": [], "calibration": {"unmeasured": []}}
        found = table_rows({"systems": {"none": none, "best": best}, **bare})
        assert [row[0] for row in found] == ["best", "none"]
        assert found[1][1:3] == ["–", "–"]


PNG = b"\x89PNG\r\n\x1a\n"


class TestPlots:
    @pytest.mark.slow
    async def test_every_figure_is_drawn(self, tmp_path):
        pytest.importorskip("matplotlib")
        names = ("good", "fair", "ultra", "ultra+recursion", "oracle", "random", "moa", "pass@5", "pipeline", "best-single", "self-reflection", "best-of-5", "ultra-solve-only")  # fmt: skip
        paths = draw_figures(await an_evaluation(tmp_path, *names), tmp_path)
        drawn = {"accuracy", "front", "curves", "difficulty", "team", "calls", "depth"}
        assert {p.name for p in paths} == {f"{n}.{form}" for n in drawn for form in ("png", "svg")}
        assert all(p.read_bytes().startswith(PNG) for p in paths if p.suffix == ".png")
        assert all(p.read_text().rstrip().endswith("</svg>") for p in paths if p.suffix == ".svg")

    async def test_names_with_dollars_are_drawn_as_they_are(self, tmp_path):
        """Matplotlib would read what is between two of them as a formula, and may fail at it."""
        pytest.importorskip("matplotlib")
        name = r"$\foo$ from $5 to $10"
        tasks = replace(task_set(6), name=name, family=lambda _: name)
        paths = draw_figures(await an_evaluation(tmp_path, "good", "ultra", tasks=tasks), tmp_path)
        texts = {path.stem: path.read_text() for path in paths if path.suffix == ".svg"}
        for figure in ("accuracy", "calls", "depth"):
            assert name in texts[figure], figure

    async def test_without_difficulties_planners_or_prices_there_are_fewer(self, tmp_path):
        pytest.importorskip("matplotlib")
        paths = draw_figures(
            await an_evaluation(tmp_path, "good", "bad", price=None, tasks=task_set(1)), tmp_path
        )
        assert {path.stem for path in paths} == {"accuracy", "front"}


async def test_a_system_that_is_asked_for_twice_is_measured_once(tmp_path):
    found = await an_evaluation(tmp_path, "good", "good")
    assert [one.name for one in found.systems] == ["good"]
    with pytest.raises(ConfigError):
        find_system("good ", subject())


def test_difficulties_are_in_order_of_size():
    found = summarize_runs([result(f"t{n}", difficulty=float(n)) for n in (10, 2, 1)])
    assert list(found["by_difficulty"]) == ["1", "2", "10"]


class TestIndex:
    """One page for several reports."""

    async def reports(self, tmp_path):
        return {
            folder: build_report(await an_evaluation(tmp_path / folder, *names))
            for folder, names in {
                "one": ("good", "fair", "oracle"),
                "two": ("fair", "bad"),
            }.items()
        }

    async def test_a_line_a_set_and_a_column_a_system_with_the_lines_to_compare_with_last(
        self, tmp_path
    ):
        found = await self.reports(tmp_path)
        assert report_files.index_heads(found) == [
            "set",
            "questions",
            "good",
            "fair",
            "bad",
            "(oracle)",
        ]
        names = report_files.list_systems(found)
        one, two = (report_files.index_row(found[folder], names) for folder in ("one", "two"))
        assert one[2] == two[0] == "–"
        right = found["one"]["systems"]["good"]["accuracy"]
        assert one[0] == f"**{100 * right:.1f}**"
        assert ["**" in cell for cell in one] == [True, False, False, False]
        assert ["**" in cell for cell in two] == [False, True, False, False]

    async def test_it_leads_to_the_folders_and_is_on_disk_in_every_form(self, tmp_path):
        found = await self.reports(tmp_path)
        publish_report_index(tmp_path / "all", found)
        page, text = ((tmp_path / "all" / f"report.{form}").read_text() for form in ("html", "md"))
        assert json.loads((tmp_path / "all" / "report.json").read_text()) == list(found.values())
        assert 'href="one/report.html"' in page and "[made up](two/report.md)" in text
        assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
        assert text.count("**") == 4

    async def test_simulated_replies_carry_a_star(self, tmp_path):
        found = await self.reports(tmp_path)
        found["one"]["systems"]["fair"]["simulated_runs"] = 3
        row = report_files.index_row(found["one"], report_files.list_systems(found))
        assert [cell.endswith(r"\*") for cell in row] == [False, True, False, False]


def test_a_page_shows_text_as_text_and_figures_in_its_own_colours():
    """Markdown alone makes the page: no tag of a name, no picture to fetch, no cell that splits."""
    rows = [["<b>x</b>", "y|z", "1.0*"]]
    text = f"# A & <i>\n\n{markdown_table(('a', 'b', 'c'), rows)}\n\n![Up is better.](front.png)\n"
    page = render_page(text, {"front": '<?xml version="1.0"?><svg><path fill="#c0392b"/></svg>'})
    assert "<title>A &amp; &lt;i&gt;</title>" in page and "<h1>A &amp; &lt;i&gt;</h1>" in page
    assert "<b>" not in page and "&lt;b&gt;x&lt;/b&gt;" in page and ">y|z</td>" in page
    assert page.count("<td") == 3 and "<em>" not in page and "<img" not in page
    assert '<path fill="var(--accent)"/>' in page and "<figcaption>Up is better." in page
    assert "<p><figure" not in page and 'aria-label="Up is better."' in page
