"""Curves of quality against cost, by hand and by their laws; submissions in RouterArena's form."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record import made_up

from batuta.errors import SourceError
from batuta.lab.evals import EvalOptions, ResultLog, evaluate_parts
from batuta.lab.evals.cost_quality import (
    average_improvement,
    average_recovered_gap,
    build_curves,
    calls_for_gap,
    quality_hull,
    recovered_gap,
)
from batuta.lab.evals.fitted_methods import FITTED_FILE, choose_pair
from batuta.lab.evals.html_report import render_page
from batuta.lab.evals.markdown_report import render_markdown
from batuta.lab.evals.plots import draw_figures
from batuta.lab.evals.recorded_sets import make_record_parts
from batuta.lab.evals.report import build_report
from batuta.lab.evals.router_arena import (
    choice_robustness,
    predict_arena,
    read_arena_questions,
    write_predictions,
)

pytestmark = pytest.mark.anyio
shares = st.floats(0, 1)
points = st.lists(st.tuples(st.floats(0, 10), shares), min_size=1, max_size=8)


def test_the_hull_leaves_out_what_a_lot_between_two_others_beats():
    found = quality_hull([(1, 0.5), (2, 0.55), (3, 0.9), (4, 0.8), (2, 0.4)])
    assert found == ((1, 0.5), (3, 0.9))


@given(points)
def test_no_point_lies_above_the_hull(drawn):
    hull = quality_hull(drawn)
    costs, heights = zip(*hull, strict=True)
    assert list(heights) == sorted(heights)
    for cost, quality in drawn:
        if cost >= costs[0]:
            assert np.interp(cost, costs, heights) >= quality - 1e-9


def test_the_average_improvement_is_the_mean_height():
    line = [(0.0, 0.4), (10.0, 0.8)]
    assert average_improvement(line, 0, 10) == pytest.approx(0.6)
    assert average_improvement(line, 0, 20) == pytest.approx(0.7)
    assert average_improvement([(5.0, 0.5)], 0, 10) == pytest.approx(0.5)
    assert average_improvement([(5.0, 0.5)], 0, 4) is None


@given(points, st.floats(0.1, 10))
def test_the_average_is_within_what_was_measured(drawn, high):
    found = average_improvement(drawn, 0, high)
    assert found is None or found <= max(quality for _, quality in drawn) + 1e-9


def test_the_gap_that_is_recovered_in_the_best_order_and_in_the_worst():
    weak, strong = [0, 1, 0, 1], [1, 1, 1, 1]
    best = recovered_gap([0, 2, 1, 3], weak, strong)
    assert best is not None
    assert best.tolist() == [0, 0.5, 1, 1, 1]
    assert average_recovered_gap(best) == pytest.approx(0.75)
    assert (calls_for_gap(best, 0.5), calls_for_gap(best, 0.8)) == (0.25, 0.5)
    worst = recovered_gap([1, 3, 0, 2], weak, strong)
    assert worst is not None
    assert average_recovered_gap(worst) == pytest.approx(0.25)
    assert calls_for_gap(worst, 0.5) == 0.75
    assert recovered_gap([0, 1], [1, 1], [1, 0]) is None


@given(st.permutations(range(6)))
def test_all_calls_recover_the_whole_gap(order):
    found = recovered_gap(order, [0, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 1])
    assert found[0] == 0
    assert found[-1] == pytest.approx(1)


class Alternating:
    workers = ("small", "big")

    def choose_indices(self, questions):
        return [len(question) % 2 for question in questions]


def test_predictions_in_the_form_of_the_arena(tmp_path):
    data = tmp_path / "router_data.json"
    rows = [{"global index": "ArcMMLU_1", "prompt_formatted": "Odd"}, {"prompt": "no index"},
            {"global index": "AIME_2", "prompt": "even"}]  # fmt: skip
    data.write_text(json.dumps(rows))
    found = predict_arena(Alternating(), read_arena_questions(data), {"big": "gpt-4o"})
    write_predictions(found, tmp_path / "mine.json")
    assert json.loads((tmp_path / "mine.json").read_text()) == [
        {"global index": "ArcMMLU_1", "prompt": "Odd", "prediction": "gpt-4o",
         "generated_result": None, "cost": None, "accuracy": None},
        {"global index": "AIME_2", "prompt": "even", "prediction": "small",
         "generated_result": None, "cost": None, "accuracy": None},
    ]  # fmt: skip
    other = predict_arena(
        Alternating(),
        [{**rows[0], "prompt_formatted": "Even"}, {**rows[2], "prompt": "same"}],
    )
    assert choice_robustness(found, [{**one, "prediction": {"big": "gpt-4o"}.get(one["prediction"], one["prediction"])} for one in other]) == 0.5  # fmt: skip
    assert choice_robustness(found, []) is None


@pytest.mark.parametrize("text", ["[]", "{", '[{"prompt": "a"}]'])
def test_a_file_that_is_none_of_the_arena_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(SourceError, match=r"data\.json"):
        read_arena_questions(tmp_path / "data.json")
    with pytest.raises(SourceError, match="cannot be read"):
        read_arena_questions(tmp_path / "none.json")


def priced(accuracy, usd, calls=1.0):
    return {"accuracy": accuracy, "usd": usd, "tokens": None, "calls": calls}


def test_systems_of_one_method_are_one_curve_that_begins_with_the_cheapest_system():
    systems = {"small": priced(0.5, 0.1), "best-single": priced(0.6, 1.1), "vote@5": priced(0.9, 2.1),
               "vote@3": priced(0.7, 1.1), "(oracle)": priced(1.0, 9.0)}  # fmt: skip
    found = build_curves(systems, ["(oracle)"], ["small"])
    assert found is not None
    assert (found["unit"], found["low"], found["high"]) == ("usd", 0.1, 2.1)
    curves = found["curves"]
    assert curves["vote"]["systems"] == ["vote@5", "vote@3"]
    assert curves["vote"]["hull"] == [[0.1, 0.5], [2.1, 0.9]]
    assert curves["vote"]["aiq"] == pytest.approx(0.7)
    assert curves["a worker alone"]["aiq"] == pytest.approx((0.55 + 0.6) / 2)


def test_without_dollars_of_all_calls_are_counted_and_one_cost_is_no_range():
    systems = {"a": priced(0.5, 0.1), "b": priced(0.6, None, 3.0)}
    found = build_curves(systems, [], [])
    assert found is not None
    assert found["unit"] == "calls"
    assert build_curves({"a": priced(0.5, 0.1), "b": priced(0.7, 0.1)}, [], []) is None


async def evaluated(folder, parts, *names):
    with ResultLog(folder) as log:
        return await evaluate_parts(parts, names, EvalOptions(), log)


@pytest.mark.slow
async def test_routers_on_a_record_are_measured_by_the_gap_that_they_recover(tmp_path):
    parts = make_record_parts(made_up(priced=True), "random", (0, 1))
    names = ("best-single", "mini", "cascade@0.001", "cascade@0.02", "vote")
    whole = await evaluated(tmp_path, parts, *names)
    found = build_report(whole)
    (router,) = found["recovered_gap"]["systems"]
    figures = found["recovered_gap"]["systems"][router]
    assert (router, figures["weak"], figures["strong"]) == ("mini", ["weak"], ["strong"])
    # a lot recovers half; who knows that words, and half of three families, are lost, far more
    assert 0.6 < figures["apgr"] < 0.8
    assert figures["cpt50"] < 0.5
    assert figures["cpt50"] < figures["cpt80"] < 0.8
    assert "for every $0.0043 of its call" in found["asks"]["cascade@0.02"][0]
    assert found["cost_quality"]["curves"]["cascade"]["systems"] == list(names[2:4])
    text = render_markdown(found)
    assert "AIQ (RouterBench, arXiv 2403.12031)" in text
    assert "## Between a weak and a strong worker" in text
    drawn = {path.stem for path in draw_figures(whole, tmp_path / "drawn")}
    assert {"curves", "gap"} <= drawn
    assert "<h2>Between a weak and a strong worker</h2>" in render_page(text)
    again = build_report(await evaluated(tmp_path, parts, *names))
    assert again["recovered_gap"] == found["recovered_gap"]
    assert again["asks"] == found["asks"]


async def test_what_was_learned_and_lost_is_not_made_up(tmp_path):
    parts = make_record_parts(made_up(), "random", (0,))
    await evaluated(tmp_path, parts, "mini")
    (tmp_path / FITTED_FILE).write_text("torn {")
    found = build_report(await evaluated(tmp_path, parts, "mini"))
    assert found["recovered_gap"]["systems"] == {}


def test_the_pair_is_the_best_and_the_cheapest_or_else_the_weakest():
    (part,) = make_record_parts(made_up(priced=True), "random", (0,))
    assert part.history is not None
    known = choose_pair(part.history)
    assert known is not None
    assert (known.weak, known.strong) == ("weak", "strong")
    (part,) = make_record_parts(made_up(), "random", (0,))
    assert part.history is not None
    assert getattr(choose_pair(part.history), "weak", None) == "weak"
    assert choose_pair(part.history.select(None, ["strong"])) is None
