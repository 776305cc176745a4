"""Recorded sets: what is known beforehand, what is measured, what a record cannot know."""

import importlib.util
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record import MODELS, made_up

from batuta.core import Pool, Question, Reply, WorkerId
from batuta.errors import ConfigError, SourceError
from batuta.lab.baselines import SolverContext
from batuta.lab.evals import EvalOptions, ResultLog, evaluate_parts, open_recorded_parts
from batuta.lab.evals.all_workers import AllWorkers, Vote, oracle_score, skill_oracle_score
from batuta.lab.evals.markdown_report import render_markdown, report_title, table_rows
from batuta.lab.evals.recorded_sets import make_record_parts
from batuta.lab.evals.report import build_report
from batuta.lab.evals.subject import AnswerCache
from batuta.lab.evals.systems import runnable_systems
from batuta.lab.tasks.recorded import ReplayPool
from data_folder import needs_data

pytestmark = pytest.mark.anyio
DATA = needs_data("recorded/reasoning_gym")


async def measured(folder, parts, *names, **options):
    with ResultLog(folder) as ledger:
        return await evaluate_parts(parts, names, EvalOptions(), ledger, **options)


def right(found, name):
    runs = found.results[name]
    return sum(run.score for run in runs) / len(runs)


class TestParts:
    @pytest.mark.parametrize("split", ["random", "unseen"])
    def test_what_is_measured_is_never_known_beforehand(self, split):
        for part in make_record_parts(made_up(), split, (0, 1, 2)):
            asked = {task.question for task in part.tasks.tasks}
            assert asked and not asked & set(part.history.questions)
            assert len(asked) + len(part.history.questions) == 200

    @pytest.mark.parametrize("questions", [1, 2, 3])
    def test_a_record_too_small_for_a_split_is_refused_in_a_sentence(self, questions):
        record, lacking = made_up(questions), 0
        for seed in range(12):
            try:
                (part,) = make_record_parts(record, "random", (seed,))
            except SourceError as error:
                lacking += 1
                assert f"none of the {questions} questions of made/up is" in str(error)
            else:
                assert part.tasks.tasks and part.history.questions
        assert lacking
        assert len(make_record_parts(record, "all", (0,))[0].tasks.tasks) == questions

    def test_all_are_measured_where_nothing_is_learned(self):
        (part,) = make_record_parts(made_up(), "all", (0,))
        assert part.history is None and len(part.tasks.tasks) == 200
        assert {worker.strength for worker in part.subject.pool} == {None}

    def test_unseen_families_are_unseen(self):
        for part in make_record_parts(made_up(), "unseen", range(5)):
            tested = {part.tasks.family(task) for task in part.tasks.tasks}
            assert tested and not tested & set(part.history.families)

    def test_every_seed_is_another_split_and_the_same_one_again(self):
        first, second = make_record_parts(made_up(), "random", (0, 1))
        assert {t.id for t in first.tasks.tasks} != {t.id for t in second.tasks.tasks}
        (again,) = make_record_parts(made_up(), "random", (1,))
        assert again.tasks.tasks == second.tasks.tasks

    def test_workers_are_as_strong_as_they_were_on_what_is_known(self):
        (part,) = make_record_parts(made_up(samples=1), "random", (0,))
        known = part.history.scores_qm.mean(axis=0)
        assert [w.strength for w in part.subject.pool] == pytest.approx(known.tolist())

    def test_an_unknown_set_is_told_with_the_known_ones(self):
        with pytest.raises(ConfigError, match=r"no recorded set .* reasoning_gym/hard"):
            open_recorded_parts("chess", "random", (0,))


LOOKING = ("vote", "mini", "oracle", "smoothie", "smoothie-local")
"""Systems that look at what everybody says, and one that does not."""


class TestRunning:
    async def test_on_all_questions_what_must_learn_is_left_out(self, tmp_path):
        parts = make_record_parts(made_up(samples=1), "all", (0,))
        found = await measured(tmp_path, parts, *MODELS, "oracle", "mini")
        assert len(found.results["oracle"]) == 200 and set(found.left_out) == {"mini"}
        title = render_markdown(build_report(found)).partition("\n")[0]
        assert title.endswith("questions"), "nothing is held out of a record that is asked whole"
        record = made_up(samples=1)
        for place, model in enumerate(MODELS):
            assert right(found, model) == pytest.approx(record.credit_qms[:, place, 0].mean())

    async def test_side_by_side_systems_earn_and_cost_what_they_do_alone(self, tmp_path):
        parts = make_record_parts(made_up(), "random", (0, 1))
        found = await measured(tmp_path / "all", parts, *LOOKING)
        assert [one.name for one in found.systems] == list(found.results) == list(LOOKING)
        for name in LOOKING:
            alone = await measured(
                tmp_path / name, make_record_parts(made_up(), "random", (0, 1)), name
            )
            assert found.results[name] == alone.results[name]

    async def test_what_everybody_said_is_asked_once_for_all_who_look_at_it(self):
        record = made_up()
        (part,) = make_record_parts(record, "random", (0,))
        asked = []

        class Listening:
            def __init__(self, client):
                self.client = client

            async def complete(self, request, listener=None):
                asked.append(request)
                return await self.client.complete(request)

        clients = {
            worker: Listening(client) for worker, client in ReplayPool(record).clients().items()
        }
        context = SolverContext(pool=part.subject.pool, clients=clients, answer_cache=AnswerCache())
        question = Question.of(part.tasks.tasks[0].question)
        async with anyio.create_task_group() as group:
            for solver in (Vote(), AllWorkers(), AllWorkers()):
                group.start_soon(solver.answer, question, context, 5)
        assert len(asked) == len(MODELS)
        other = Question.of(part.tasks.tasks[1].question)
        await Vote().answer(other, context, 5)
        assert len(asked) == 2 * len(MODELS)

    async def test_scores_are_those_of_the_record(self, tmp_path):
        found = await measured(tmp_path, make_record_parts(made_up(), "random", (0, 1)), *MODELS)
        record = made_up()
        where = {task.id: n for n, task in enumerate(record.tasks)}
        for m, name in enumerate(MODELS):
            for run in found.results[name]:
                assert run.score in record.scores_qms[where[run.task], m]  # pyright: ignore[reportArgumentType]
        assert right(found, "weak") == 0 and right(found, "strong") > 0.3

    async def test_what_the_record_has_not_is_unknown(self, tmp_path):
        found = await measured(
            tmp_path, make_record_parts(made_up(), "random", (0,)), "strong", "vote"
        )
        assert {(r.tokens, r.usd, r.seconds) for r in found.results["vote"]} == {(None, None, None)}
        text = render_markdown(build_report(found))
        assert "The workers replay recorded answers" in text
        (row,) = (row for row in table_rows(build_report(found)) if row[0] == "vote")
        assert row[6:9] == ["–", "–", "–"]

    async def test_what_it_has_is_counted(self, tmp_path):
        parts = make_record_parts(made_up(priced=True), "random", (0,))
        found = await measured(tmp_path, parts, "strong", "oracle")
        assert {(r.tokens, r.usd) for r in found.results["strong"]} == {(110, Decimal("0.01"))}
        assert {(r.tokens, r.usd, r.calls) for r in found.results["oracle"]} == {
            (330, Decimal("0.013"), 3)
        }

    async def test_samples_of_a_run_are_distinct_and_every_run_has_a_fresh_hand(self, tmp_path):
        found = await measured(
            tmp_path, make_record_parts(made_up(), "random", (0,)), "pass@2", "strong"
        )
        for run in found.results["pass@2"]:
            number = int(run.task[1:])
            assert run.calls == 2 and run.score == (
                number % 5 != 1 and (number % 10 < 7 or number % 2 == 1)
            )

    async def test_a_plan_that_a_record_cannot_know_is_wrong_and_no_outage(self, tmp_path):
        parts = make_record_parts(made_up(), "random", (0,))
        found = await measured(tmp_path, parts, "pipeline", "self-consistency@2")
        assert {(r.score, r.unscored, r.outcome) for r in found.results["pipeline"]} == {
            (0.0, None, "invalid")
        }
        assert {r.outcome for r in found.results["self-consistency@2"]} == {"answered"}
        said = build_report(found)
        assert said["systems"]["pipeline"]["invalid"] == len(found.results["pipeline"])
        assert (
            "asked for something the record lacks, counted as wrong: pipeline"
            in render_markdown(said)
        )

    async def test_simulated_replies_are_called_so(self, tmp_path):
        parts = make_record_parts(made_up(), "random", (0,), simulate=True)
        found = await measured(tmp_path, parts, "pipeline", "vote")
        assert all(run.simulated == 5 for run in found.results["pipeline"])
        assert not any(run.simulated for run in found.results["vote"])
        text = render_markdown(build_report(found))
        assert "| pipeline* |" in text and "| vote |" in text
        assert "simulated by one of the model's recorded answers" in text

    @pytest.mark.parametrize("answered", [True, False])
    async def test_answers_recorded_under_the_name_of_a_method_are_what_is_measured(
        self, tmp_path, answered
    ):
        """inspect_ai's logs become such a record: its workers are the systems of the first run."""
        names = ("moa", "best-single", "self-consistency@9")
        record = replace(made_up(samples=1, answered=answered), models=names)
        parts = make_record_parts(record, "all", (0,))
        found = await measured(tmp_path, parts, *names, "vote", "mini")
        for m, name in enumerate(names):
            assert right(found, name) == pytest.approx(record.credit_qm()[:, m].mean())
            assert {step.worker for run in found.results[name] for step in run.steps} == {name}
        assert "mini" in found.left_out and ("vote" in found.left_out) is not answered

    async def test_nobody_conducts_a_record_unless_he_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match="no system 'ultra'"):
            await measured(tmp_path, make_record_parts(made_up(), "random", (0,)), "ultra")


class TestLines:
    async def test_the_order_that_lines_must_have(self, tmp_path):
        parts = make_record_parts(made_up(), "random", (0, 1, 2))
        names = ("best-single", "oracle", "pass@2", "skill-oracle@2")
        found = await measured(tmp_path, parts, *names)
        best, oracle, passed, skill = (right(found, name) for name in names)
        assert best < oracle and best < passed and best < skill
        assert build_report(found)["references"] == ["oracle", "pass@2", "skill-oracle@2"]

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3),
            min_size=1,
            max_size=5,
        )
    )
    def test_repeatable_skill_is_at_most_what_any_sample_earns(self, by_worker):
        scored = [(WorkerId(str(w)), s) for w, own in enumerate(by_worker) for s in own]
        assert 0 <= skill_oracle_score(scored) <= oracle_score(scored) <= 1

    @pytest.mark.parametrize("gaps", [False, True])
    async def test_one_workflow_on_a_record_says_what_a_workflow_a_worker_says(self, gaps):
        record = made_up(20)
        if gaps:
            record.scores_qms[::3, 1] = np.nan
            record.scores_qms[::4, 0, 1] = np.nan
        deck, pool = ReplayPool(record), record.pool()
        bare = Pool(tuple(replace(worker, tags=()) for worker in pool))
        for task in record.tasks:
            question = Question.of(task.question)
            fast, slow = [
                await AllWorkers(2).answer(
                    question, SolverContext(pool=one, clients=deck.clients()), 7
                )
                for one in (pool, bare)
            ]
            told = [
                sorted((s.worker, s.result.text) for s in run.steps if isinstance(s.result, Reply))
                for run in (fast, slow)
            ]
            assert told[0] == told[1] and fast.usage == slow.usage

    def test_luck_is_not_skill(self):
        lucky, steady = WorkerId("lucky"), WorkerId("steady")
        once = [(steady, 0.0), (steady, 0.0), (lucky, 1.0), (lucky, 0.0)]
        assert oracle_score(once) == 1 and skill_oracle_score(once) == 0
        always = [(lucky, 0.0), (lucky, 0.0), (steady, 1.0), (steady, 1.0)]
        assert skill_oracle_score(always) == 1
        assert skill_oracle_score([(steady, 1.0)]) == 0


class TestFitted:
    async def test_all_stands_for_what_can_run_on_the_record(self, tmp_path):
        (part,) = make_record_parts(made_up(), "random", (0,))
        names = runnable_systems(part.subject)
        assert {"knn", "vote", "best-single", "oracle", "skill-oracle@2", "pass@2"} <= set(names)
        assert not {"moa", "pipeline", "ultra", "prompted", "random"} & set(names)
        (bare,) = make_record_parts(made_up(samples=1, answered=False), "random", (0,))
        assert not {"vote", "smoothie", "pass@1"} & set(runnable_systems(bare.subject))
        (loose,) = make_record_parts(made_up(), "random", (0,), simulate=True)
        assert {"moa", "pipeline"} <= set(runnable_systems(loose.subject))

    @pytest.mark.slow
    async def test_what_cannot_learn_is_left_out_with_the_reason(self, tmp_path):
        few = make_record_parts(made_up(20), "random", (0,))
        found = await measured(tmp_path / "a", few, "all")
        assert "mini" in found.left_out and {"vote", "random-routing"} <= set(found.results)
        assert "Left out: mini (a selector needs outcomes" in render_markdown(build_report(found))
        named = await measured(tmp_path / "b", few, "mini", "vote")
        assert list(named.results) == ["vote"] and "at least" in named.left_out["mini"]
        with pytest.raises(ConfigError, match=r"nothing can be measured\. mini: a selector needs"):
            await measured(tmp_path / "c", few, "mini")

    async def test_without_answers_nothing_that_compares_them_is_measured(self, tmp_path):
        parts = make_record_parts(made_up(answered=False), "random", (0,))
        asked = ("best-single", "vote", "cascade", "cascade@0.001", "smoothie")
        found = await measured(tmp_path, parts, *asked, "self-consistency@2")
        assert list(found.results) == ["best-single"]
        assert set(found.left_out) == {*asked[1:], "self-consistency@2"}
        assert "Left out: vote (the record has no answers to compare" in render_markdown(
            build_report(found)
        )

    async def test_with_half_the_answers_nothing_that_compares_them_is_measured(self, tmp_path):
        record = made_up()
        assert record.answers_qms is not None
        said = record.answers_qms.copy()
        said[::2] = -1
        parts = make_record_parts(replace(record, answers_qms=said), "random", (0,))
        found = await measured(tmp_path, parts, "best-single", "vote", "cascade@0.001")
        assert list(found.results) == ["best-single"]
        assert "the answers of only" in found.left_out["vote"]
        assert found.left_out["vote"] == found.left_out["cascade@0.001"]

    async def test_wrong_runs_without_an_answer_are_no_missing_answers(self, tmp_path):
        record = made_up()
        assert record.answers_qms is not None
        said = np.where(record.scores_qms > 0, record.answers_qms, -1).astype(np.int32)
        parts = make_record_parts(replace(record, answers_qms=said), "random", (0,))
        assert list((await measured(tmp_path, parts, "vote")).results) == ["vote"]

    async def test_more_samples_than_were_recorded_are_no_measurement(self, tmp_path):
        parts = make_record_parts(made_up(samples=2), "random", (0,))
        asked = ("self-consistency@2", "self-consistency@3", "pass@3", "skill-oracle@3")
        found = await measured(tmp_path, parts, *asked)
        assert list(found.results) == ["self-consistency@2"]
        assert found.left_out["pass@3"] == "it needs 3 runs of a worker, and the record has 2"
        assert set(found.left_out) == set(asked[1:])

    async def test_the_table_and_the_difference_agree(self, tmp_path):
        """A question is in the tests of several splits, each time with another best worker."""
        parts = make_record_parts(made_up(60), "random", range(6))
        found = build_report(await measured(tmp_path, parts, "best-single", "vote", "nimble"))
        table = found["systems"]
        for name in ("vote", "nimble"):
            points = table[name]["accuracy"] - table["best-single"]["accuracy"]
            assert found["differences"]["systems"][name]["mean"] == pytest.approx(points)

    async def test_a_router_learns_from_what_is_known(self, tmp_path):
        found = await measured(
            tmp_path, make_record_parts(made_up(), "random", (0, 1)), "knn", "best-single"
        )
        assert right(found, "knn") > right(found, "best-single")
        teams = Counter(step.worker for run in found.results["knn"] for step in run.steps)
        assert teams["nimble"] > 0 and teams["strong"] > 0
        assert build_report(found)["fitted"] == ["knn"]

    async def test_the_same_again_is_read_and_not_learned_anew(self, tmp_path):
        parts = make_record_parts(made_up(), "random", (0, 1))
        first = await measured(tmp_path, parts, "knn", "masrouter", "vote")
        size = (tmp_path / "results.jsonl").stat().st_size
        again = await measured(tmp_path, parts, "knn", "masrouter", "vote")
        assert build_report(first) == build_report(again)
        assert (tmp_path / "results.jsonl").stat().st_size == size


class TestSeeds:
    async def test_means_over_splits_have_their_scatter(self, tmp_path):
        found = build_report(
            await measured(
                tmp_path, make_record_parts(made_up(), "unseen", range(14)), "strong", "vote"
            )
        )
        figures = found["systems"]["strong"]
        assert list(figures["by_seed"]) == [str(n) for n in range(14)] and figures["seed_sd"] >= 0
        assert found["split"] == "unseen" and found["seeds"] == list(range(14))
        assert found["differences"]["systems"]["vote"]["test"] == "paired bootstrap"
        assert "14 splits of whole families" in render_markdown(found)

    async def test_only_what_was_held_out_is_said_to_be_held_out(self, tmp_path):
        titles = [
            report_title(
                build_report(
                    await measured(
                        tmp_path / split, make_record_parts(made_up(), split, (0,)), "weak"
                    )
                )
            )
            for split in ("all", "random")
        ]
        assert titles[0] == "recorded:made/up: 200 questions"
        assert titles[1].endswith("questions held out, a split at random")

    async def test_of_few_families_no_interval_is_told(self, tmp_path):
        parts = make_record_parts(made_up(), "unseen", (0,), limit=12)
        evaluation = await measured(tmp_path, parts, "strong", "vote")
        found = build_report(evaluation)
        assert {len(s["by_family"]) for s in found["systems"].values()} <= {1, 2, 3, 4}
        assert [s["ci95"] for s in found["systems"].values()] == [None, None]
        assert found["differences"]["systems"] == {}
        assert "| vote | " in render_markdown(found) and "## Against" not in render_markdown(found)
        if importlib.util.find_spec("matplotlib"):
            from batuta.lab.evals.plots import draw_figures

            assert {path.stem for path in draw_figures(evaluation, tmp_path)} == {
                "accuracy",
                "front",
                "curves",
                "team",
            }

    async def test_a_limit_takes_questions_by_lot(self):
        (part,) = make_record_parts(made_up(), "random", (0,), limit=15)
        (whole,) = make_record_parts(made_up(), "random", (0,))
        assert len(part.tasks.tasks) == 15 and set(part.tasks.tasks) < set(whole.tasks.tasks)
        assert part.tasks.tasks != whole.tasks.tasks[:15]

    async def test_equal_cost_is_what_the_first_system_took(self, tmp_path):
        parts = make_record_parts(made_up(priced=True), "random", (0,))
        found = await measured(tmp_path, parts, "vote", equal=("cost", "calls"))
        cost, calls = found.budgets
        assert (cost.of, cost.what, cost.k) == ("vote", "dollars", 2)
        assert cost.amount == pytest.approx(0.013)
        assert (calls.what, calls.amount, calls.k) == ("calls", 3, 2)  # a record has two samples
        assert list(found.results) == ["vote", "best-single", "self-consistency@2"]
        text = render_markdown(build_report(found))
        assert "compared with 2 samples of the best worker (rounded up, or all that" in text


@DATA
class TestRealRecords:
    @pytest.mark.slow
    async def test_lines_of_reasoning_gym_are_those_that_were_published(self, tmp_path):
        parts = open_recorded_parts("reasoning_gym/easy", "random", (0,), limit=300)
        found = await measured(tmp_path, parts, "best-single", "skill-oracle@3", "pass@3")
        best, skill, passed = (right(found, n) for n in ("best-single", "skill-oracle@3", "pass@3"))
        assert 0.72 < best < 0.89 and best < skill < passed + 0.05

    def test_a_model_that_is_not_recorded_is_told(self):
        with pytest.raises(SourceError, match="has no model 'hal'"):
            open_recorded_parts("reasoning_gym/hard", "random", (0,), models=["hal"])
