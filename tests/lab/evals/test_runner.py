"""Running, keeping, resuming: nothing is run twice and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from evaluated import PRICE, evaluate_task_set, questions, result, subject, task_set

from batuta.clients import ScriptedClient
from batuta.conductors import LLMConductor
from batuta.core import Grade, Pool, Price, Reply, Usage, WorkerId
from batuta.errors import BadRequestError, ConfigError, ProviderOverloadedError, StoreError
from batuta.guardrails import Guardrails
from batuta.guardrails.grounded import GroundedAction, GroundedPolicy
from batuta.lab.evals import EvalOptions, ResultLog, TaskSet
from batuta.lab.evals.grading import open_answer_grader
from batuta.lab.evals.learned_methods import measured_history
from batuta.lab.evals.markdown_report import render_markdown, table_rows
from batuta.lab.evals.matched_budget import match_cost
from batuta.lab.evals.report import build_report
from batuta.lab.evals.result_log import RESULTS_FILE

pytestmark = pytest.mark.anyio


async def measured(folder, tested, tasks, *names, terms=None, **options):
    with ResultLog(folder) as ledger:
        return await evaluate_task_set(
            tested, tasks, names=names, options=terms or EvalOptions(), result_log=ledger, **options
        )


def calls(tested):
    return sum(len(client.requests) for client in tested.clients.values())


class TestRunning:
    async def test_accuracies_and_accounts(self, tmp_path):
        tested = subject()
        found = await measured(tmp_path, tested, task_set(10), "good", "fair", "bad")
        scores = {n: [r.score for r in rs] for n, rs in found.results.items()}
        assert scores == {"good": [1.0] * 10, "fair": [1.0, 0.0] * 5, "bad": [0.0] * 10}
        assert sum(r.calls for rs in found.results.values() for r in rs) == calls(tested) == 30
        one = found.results["fair"][1]
        assert (one.task, one.family, one.difficulty, one.answer) == ("t1", "f1", 2.0, "-1")
        assert one.usd > 0 and one.steps[0].worker == "fair" and one.outcome == "answered"

    async def test_every_seed_is_a_run_of_its_own(self, tmp_path):
        tested = subject()
        found = await measured(
            tmp_path, tested, task_set(3), "good", terms=EvalOptions(seeds=(4, 5))
        )
        assert [(r.task, r.seed) for r in found.results["good"]] == [
            (f"t{n}", seed) for n in range(3) for seed in (4, 5)
        ]
        seeds = {r.sampling.seed for r in tested.clients["good"].requests}  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        assert len(seeds) == 6

    async def test_no_more_runs_at_a_time_than_allowed(self, tmp_path):
        now = most = 0

        class Slow:
            async def complete(self, request, listener=None):
                nonlocal now, most
                now += 1
                most = max(most, now)
                await anyio.sleep(0.002)
                now -= 1
                return Reply(text="Answer: 1", usage=Usage(calls=1, input=1))

        slow = subject()
        slow = replace(slow, clients={worker.id: Slow() for worker in slow.pool})
        await measured(tmp_path, slow, task_set(20), "good", terms=EvalOptions(concurrency=3))
        assert most == 3

    async def test_a_reference_line_is_right_if_any_reply_is(self, tmp_path):
        found = await measured(tmp_path, subject(), task_set(4), "oracle", "pass@2", "fair")
        assert [r.score for r in found.results["oracle"]] == [1.0] * 4
        assert [r.calls for r in found.results["oracle"]] == [3] * 4
        assert [r.calls for r in found.results["pass@2"]] == [2] * 4

    async def test_an_unknown_system_is_told_before_anything_is_run(self, tmp_path):
        tested = subject()
        with pytest.raises(ConfigError):
            await measured(tmp_path, tested, task_set(4), "good", "opera")
        assert calls(tested) == 0


class TestCalibration:
    async def test_the_best_single_worker_is_the_best_on_other_questions(self, tmp_path):
        def say(worker, request):
            number = int(request.messages[-1].text.split("number ")[1][:-1])
            knows = {"good": number < 1000, "fair": number >= 1000, "bad": False}[worker]
            return f"Answer: {number if knows else -1}"

        found = await measured(tmp_path, subject(say), task_set(5, 8), "best-single", "good")
        assert found.strengths == {"good": 0.0, "fair": 1.0, "bad": 0.0}
        assert [r.score for r in found.results["best-single"]] == [0.0] * 5
        assert [r.score for r in found.results["good"]] == [1.0] * 5

    async def test_it_is_run_once_and_only_where_it_is_needed(self, tmp_path):
        tested = subject()
        await measured(tmp_path / "a", tested, task_set(3, 4), "good", "ultra")
        assert not [r for r in tested.clients["bad"].requests if "number 10" in r.messages[0].text]  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        found = await measured(tmp_path / "b", tested, task_set(3, 4), "best-single", "pipeline")
        asked = [r for r in tested.clients["bad"].requests if "number 10" in r.messages[0].text]  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        assert len(asked) == 4 and found.strengths["good"] == 1.0  # pyright: ignore[reportArgumentType]

    async def test_who_need_not_know_the_best_is_not_told(self, tmp_path):
        tested = subject()
        await measured(tmp_path, tested, task_set(3, 4), "best-single", "ultra")
        before = calls(tested)
        await measured(tmp_path, tested, task_set(3, 4), "ultra")
        assert calls(tested) == before

    async def test_a_router_is_taught_by_the_calibration_and_refused_without(self, tmp_path):
        found = await measured(tmp_path / "a", subject(), task_set(3, 40), "knn", "best-single")
        assert [r.score for r in found.results["knn"]] == [1.0] * 3
        assert build_report(found)["calibration"]["questions"] == 40
        bare = await measured(tmp_path / "b", subject(), task_set(3), "good", "knn")
        assert list(bare.results) == ["good"]
        assert "must learn from other questions" in bare.left_out["knn"]
        with pytest.raises(ConfigError, match=r"nothing can be measured. knn: it must learn"):
            await measured(tmp_path / "c", subject(), task_set(3), "knn")
        assert not (tmp_path / "c" / "results.jsonl").read_bytes()

    async def test_without_other_questions_the_pools_own_belief_is_taken(self, tmp_path):
        found = await measured(tmp_path, subject(), task_set(3), "best-single")
        assert found.strengths == {} and found.results["best-single"][0].steps[0].worker == "good"
        ((label, *_),) = table_rows(build_report(found))
        assert label == "best-single [good‡]"
        assert "‡ There were no other questions to measure the workers on" in render_markdown(
            build_report(found)
        )
        measured_by = await measured(tmp_path, subject(), task_set(3, 6), "best-single")
        assert table_rows(build_report(measured_by))[0][0] == "best-single"


class TestSubPools:
    async def test_a_fresh_pool_for_each_question_the_same_for_each_system(self, tmp_path):
        many = subject(workers=tuple("abcdefg"), say=lambda w, r: "Answer: 1")
        terms = EvalOptions(sub_pool=2, pool_seed=3)
        names = ("oracle", "ultra", "a")
        found = await measured(tmp_path, many, task_set(30), *names, terms=terms)
        teams = [{s.worker for s in r.steps} for r in found.results["oracle"]]
        assert {len(team) for team in teams} == {2}
        assert len({frozenset(team) for team in teams}) > 8
        for team, run in zip(teams, found.results["ultra"], strict=True):
            assert {s.worker for s in run.steps} <= team
        assert {r.task for r in found.results["a"]} == {
            r.task for r, team in zip(found.results["oracle"], teams, strict=True) if "a" in team
        }

    async def test_the_best_single_worker_is_the_best_of_the_questions_own_pool(self, tmp_path):
        ranks = "abcdefg"

        def say(worker, request):
            number = int(request.messages[-1].text.split("number ")[1][:-1])
            return f"Answer: {number if number % 7 >= ranks.index(worker) else -1}"

        many = subject(say, workers=tuple(ranks))
        terms = EvalOptions(sub_pool=3)
        found = await measured(
            tmp_path, many, task_set(20, 14), "oracle", "best-single", terms=terms
        )
        for everyone, best in zip(
            found.results["oracle"], found.results["best-single"], strict=True
        ):
            assert best.steps[0].worker == min(step.worker for step in everyone.steps)


class TestEqualCalls:
    async def test_others_get_as_many_calls_as_ultra_made_rounded_up(self, tmp_path):
        tested = subject()
        found = await measured(tmp_path, tested, task_set(4), "good", equal=("calls",))
        assert list(found.results) == ["ultra", "good", "self-consistency@3", "best-of-3"]
        assert [(b.of, b.what, b.amount, b.k) for b in found.budgets] == [("ultra", "calls", 3, 3)]
        assert {r.calls for r in found.results["self-consistency@3"]} == {3}

    async def test_without_a_run_of_ultra_nothing_is_added(self, tmp_path):
        dead = subject(lambda w, r: ProviderOverloadedError("full"))
        found = await measured(tmp_path, dead, task_set(2), "ultra", equal=("calls", "cost"))
        assert list(found.results) == ["ultra"] and found.budgets == ()

    async def test_a_spent_budget_adds_nothing_and_loses_nothing(self, tmp_path):
        limit = SpentLater(3)
        found = await measured(
            tmp_path, subject(call_limit=limit), task_set(2), "ultra", equal=("cost", "calls")
        )
        assert limit.is_spent and len(found.results["ultra"]) == 2
        assert {"best-single", "self-consistency@3", "best-of-3"} == {*found.left_out}
        assert [budget.what for budget in found.budgets] == ["calls"]

    async def test_what_grading_costs_is_in_no_budget_and_in_no_worker_s_price(self):
        """A judge that costs more than a worker would hide what the worker costs."""
        judge = Decimal("0.01")
        conducted, alone = (
            result(usd=usd + judge, judge_usd=judge) for usd in (Decimal("0.02"), Decimal("0.001"))
        )
        found = match_cost("ultra", [conducted], [alone])
        assert (found.what, found.amount, found.k) == ("dollars", 0.02, 20)
        history = measured_history(questions(1), (WorkerId("a"),), lambda *_: alone, lambda _: "f")
        assert history.usd_qm.tolist() == [[0.001]]
        unknown = replace(alone, judge_usd=None, usd=None)
        assert match_cost("ultra", [conducted], [unknown]).what == "tokens"

    async def test_answers_that_differ_only_in_form_are_one_answer_as_in_the_file(self):
        said = dict(zip((WorkerId("a"), WorkerId("b")), ("Paris", "paris."), strict=True))
        history = measured_history(
            questions(1), tuple(said), lambda who, _: result(answer=said[who]), lambda _: "f"
        )
        assert history.samples is not None
        assert history.samples.answers_qms.tolist() == [[[0], [0]]]

    async def test_more_samples_than_can_be_asked_are_left_out_and_the_rest_is_reported(
        self, tmp_path
    ):
        dear = {"bad": Price(input=Decimal(9000), output=Decimal(9000))}
        tested = subject(workers=("good", "bad"), prices=dear)
        found = await measured(tmp_path, tested, task_set(2, 4), "good", equal=("cost", "calls"))
        assert list(found.results) == [
            "ultra", "good", "best-single", "self-consistency@3", "best-of-3"
        ]  # fmt: skip
        assert [budget.what for budget in found.budgets] == ["calls"]
        for name, why in found.left_out.items():
            assert int(name.split("@")[-1].split("-")[-1]) > 999
            assert why == "ultra takes as much as more than 999 samples of the best worker"
        assert len(found.left_out) == 2 and "Left out: best-of-" in render_markdown(
            build_report(found)
        )

    async def test_what_the_server_refuses_is_not_added(self, tmp_path):
        policy = GroundedPolicy(
            name="sources", worker=subject().pool.workers[0], action=GroundedAction.REFUSE
        )
        checked = subject(guardrails=Guardrails(grounded=policy))
        with pytest.raises(ConfigError, match="sources cannot check them"):
            await measured(tmp_path, checked, task_set(2), "good", equal=("calls",))
        assert not (tmp_path / RESULTS_FILE).read_text(), "refused before any call"


class SpentLater:
    """A budget that is spent once it has been looked at so many times."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def is_spent(self):
        self.looks -= 1
        return self.looks < 0

    def limit_client(self, client, worker):
        return client


class TestUnscored:
    @pytest.mark.parametrize(
        ("said", "unscored", "score"),
        [
            (ProviderOverloadedError("the house is full"), "outage", None),
            (BadRequestError("no such parameter"), "outage", None),
            (Reply(text="", usage=Usage(calls=1, input=1)), None, 0.0),
            (Reply(text="Answer: 5"), None, 0.0),
        ],
    )
    async def test_an_outage_is_never_a_wrong_answer(self, tmp_path, said, unscored, score):
        found = await measured(tmp_path, subject(lambda w, r: said), task_set(1), "good")
        one = found.results["good"][0]
        assert (one.unscored, one.score) == (unscored, score)
        assert one.reason

    async def test_a_conductor_that_cannot_be_asked_is_an_outage(self, tmp_path):
        dead = LLMConductor(
            name="dead", client=ScriptedClient(lambda _: ProviderOverloadedError("full"))
        )
        found = await measured(tmp_path, subject(conductor=dead), task_set(2), "ultra")
        assert {r.unscored for r in found.results["ultra"]} == {"outage"}

    async def test_a_conductor_that_writes_nonsense_is_not(self, tmp_path):
        lost = LLMConductor(name="lost", client=ScriptedClient(lambda _: "no lists at all"))
        found = await measured(tmp_path, subject(conductor=lost), task_set(2), "ultra")
        assert {(r.unscored, r.outcome, r.calls) for r in found.results["ultra"]} == {
            (None, "fallback", 4)
        }

    async def test_an_undecided_grade_is_apart_from_wrong(self, tmp_path):
        async def shrug(task, answer):
            return Grade(None, None, "cannot tell")

        tasks = replace(task_set(2), grade=shrug)
        found = await measured(tmp_path, subject(), tasks, "good", "oracle")
        assert {(r.unscored, r.reason) for r in found.results["good"]} == {
            ("undecided", "cannot tell")
        }

    @pytest.mark.parametrize("system", ["good", "oracle"])
    async def test_an_answer_that_a_judge_was_not_there_to_grade_is_graded_later(
        self, tmp_path, system
    ):
        tasks = tuple(replace(task, grader="judge") for task in questions(2))

        def fail(_):
            raise ProviderOverloadedError("the judge is busy")

        async def judged(reply):
            async with open_answer_grader(tasks, ScriptedClient(reply)) as grade:
                asked = TaskSet(name="judged", tasks=tasks, calibration=(), grade=grade)
                found = await measured(tmp_path, subject(), asked, system)
            return {(run.unscored, run.score) for run in found.results[system]}

        assert await judged(fail) == {("outage", None)}
        assert await judged(lambda _: "GRADE: 1") == {(None, 1.0)}
        assert await judged(fail) == {(None, 1.0)}  # kept

    async def test_what_a_judge_takes_is_counted_and_told_apart(self, tmp_path):
        tasks = tuple(replace(task, grader="judge") for task in questions(2))
        judge = ScriptedClient(lambda _: "GRADE: 1", price=PRICE)
        async with open_answer_grader(tasks, judge) as grade:
            asked = TaskSet(name="judged", tasks=tasks, calibration=(), grade=grade)
            found = await measured(tmp_path, subject(), asked, "good")
            alone = await measured(tmp_path / "b", subject(), task_set(2), "good")
        one, same = found.results["good"][0], alone.results["good"][0]
        assert one.judge_usd > 0 and one.usd == same.usd + one.judge_usd and one.calls == 1
        assert "for grading the answers, included above: good $" in render_markdown(
            build_report(found)
        )

    async def test_an_outage_is_tried_again_and_nothing_else_is(self, tmp_path):
        dark = True

        def say(worker, request):
            number = int(request.messages[-1].text.split("number ")[1][:-1])
            return ProviderOverloadedError("full") if dark and number == 1 else f"Answer: {number}"

        tested = subject(say)
        first = await measured(tmp_path, tested, task_set(3), "good")
        assert [r.unscored for r in first.results["good"]] == [None, "outage", None]
        dark = False
        before = calls(tested)
        again = await measured(tmp_path, tested, task_set(3), "good")
        assert calls(tested) - before == 1
        assert [r.score for r in again.results["good"]] == [1.0] * 3

    async def test_a_step_that_another_worker_took_over_is_told(self, tmp_path):
        tested = subject(
            lambda w, r: ProviderOverloadedError("full") if w == "good" else "Answer: 0"
        )
        found = await measured(tmp_path, tested, task_set(1), "ultra")
        assert found.results["ultra"][0].failed > 0 and found.results["ultra"][0].score == 1.0


class TestLedger:
    def test_what_is_written_is_read_again(self, tmp_path):
        made = [result("t0"), result("t1", None, unscored="outage", usd=None), result("t2", 0.5)]  # pyright: ignore[reportArgumentType]
        with ResultLog(tmp_path) as ledger:
            for one in made:
                ledger.add(one)
        with ResultLog(tmp_path) as ledger:
            assert [ledger[one.key] for one in made] == made
            assert [ledger.is_done(one.key) for one in made] == [True, False, True]
            assert not ledger.is_done("another")
            assert isinstance(ledger[made[0].key].usd, Decimal)

    def test_a_torn_line_is_forgotten_and_the_next_one_whole(self, tmp_path):
        with ResultLog(tmp_path) as ledger:
            ledger.add(result("t0"))
            path = ledger.path
        with path.open("ab") as file:
            file.write(b'{"key": "torn')
        with ResultLog(tmp_path) as ledger:
            ledger.add(result("t1"))
        with ResultLog(tmp_path) as ledger:
            assert ledger.is_done(result("t0").key) and ledger.is_done(result("t1").key)
        assert len(path.read_bytes().splitlines()) == 2

    def test_a_whole_line_without_its_end_is_kept(self, tmp_path):
        with ResultLog(tmp_path) as ledger:
            ledger.add(result("t0"))
            ledger.add(result("t1"))
            path = ledger.path
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
        with ResultLog(tmp_path) as ledger:
            assert ledger.is_done(result("t1").key), "it would be paid again"
            ledger.add(result("t2"))
        with ResultLog(tmp_path) as ledger:
            assert all(ledger.is_done(result(task).key) for task in ("t0", "t1", "t2"))

    @pytest.mark.parametrize("text", [b"notes of mine", b'x\n{"key": "torn', b"\xff\x00"])
    def test_a_file_that_is_refused_stays_as_it_is(self, tmp_path, text):
        path = tmp_path / RESULTS_FILE
        path.write_bytes(text)
        with pytest.raises(StoreError, match=r"results\.jsonl, line 1 is not a result"):
            ResultLog(tmp_path)
        assert path.read_bytes() == text

    def test_two_evaluations_cannot_write_to_one_folder(self, tmp_path):
        """Another process holds it; killed, it holds it no longer."""
        code = (
            "import sys, time; from pathlib import Path; from batuta.lab.evals import ResultLog\n"
            "kept = ResultLog(Path(sys.argv[1])); print('open', flush=True); time.sleep(60)"
        )
        args = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(args, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(StoreError, match="another evaluation writes to"):
                ResultLog(tmp_path)
            other.kill()
        ResultLog(tmp_path).__exit__(None, None, None)

    def test_a_line_that_is_no_result_is_named(self, tmp_path):
        (tmp_path / "results.jsonl").write_text('{"key": 1}\n')
        with pytest.raises(StoreError, match=r"line 1 is not a result of this version"):
            ResultLog(tmp_path)

    def test_a_folder_that_cannot_be_is_told(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot be used"):
            ResultLog(tmp_path / "file" / "folder")

    async def test_any_change_of_what_is_measured_is_measured_anew(self, tmp_path):
        tasks, tested = task_set(1), subject()
        await measured(tmp_path, tested, tasks, "ultra")
        before = calls(tested)
        await measured(tmp_path, tested, tasks, "ultra")
        assert calls(tested) == before
        reworded = replace(tasks, tasks=(replace(tasks.tasks[0], target="9"),))
        for other, asked in (
            (
                subject(conductor=LLMConductor(name="other", client=ScriptedClient(["x"] * 9))),
                tasks,
            ),
            (subject(workers=("good", "fair")), tasks),
            (tested, reworded),
        ):
            count = calls(other)
            await measured(tmp_path, other, asked, "ultra")
            assert calls(other) > count


CHILD = """
import os, sys
sys.path.insert(0, {tests!r})
import anyio
from pathlib import Path
from dataclasses import replace
from evaluated import evaluate_task_set, subject, task_set
from batuta.lab.evals import EvalOptions, ResultLog
from batuta.lab.evals.matched_budget import match_cost
from batuta.lab.evals.report import build_report
from batuta.lab.evals.result_log import RESULTS_FILE

log = os.open("calls.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Logged:
    def __init__(self, inner):
        self.inner = inner

    async def complete(self, request, listener):
        await anyio.sleep(0.01)
        os.write(log, (request.messages[0].text + "\\n").encode())
        return await self.inner.complete(request, listener)

tested = subject()
tested = replace(tested, clients={{w: Logged(c) for w, c in tested.clients.items()}})

async def main():
    with ResultLog(Path("out")) as ledger:
        found = await evaluate_task_set(tested, task_set(60), ("fair",), EvalOptions(concurrency=2), ledger)
    import json
    print(json.dumps(build_report(found)))

anyio.run(main)
"""


@pytest.mark.slow
def test_after_kill_9_what_was_finished_is_not_run_again(tmp_path):
    code = CHILD.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code]
    results = tmp_path / "out" / "results.jsonl"
    victim = subprocess.Popen(command, cwd=tmp_path)
    deadline = time.monotonic() + 90
    while not results.exists() or len(results.read_bytes().splitlines()) < 10:
        assert victim.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    finished = {json.loads(line)["task"] for line in results.read_bytes().splitlines()}
    assert 10 <= len(finished) < 60

    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    asked = (tmp_path / "calls.log").read_text().split("\n")[:-1]
    for number in range(60):
        times = asked.count(f"What is number {number}?")
        assert times == 1 if f"t{number}" in finished else times in {1, 2}
    assert 60 <= len(asked) <= 62

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    whole = subprocess.run(command, cwd=fresh, capture_output=True, text=True, check=True)
    reports = [json.loads(done.stdout) for done in (resumed, whole)]
    for found in reports:
        del found["systems"]["fair"]["seconds"]
    assert reports[0] == reports[1]


async def test_the_report_of_kept_results_is_the_same_to_the_last_digit(tmp_path):
    names = ("good", "fair", "ultra", "oracle", "random", "moa")
    first = await measured(tmp_path, subject(), task_set(12, 6), *names)
    again = await measured(tmp_path, subject(), task_set(12, 6), *names)
    assert build_report(first) == build_report(again)


async def test_a_worker_that_could_not_be_measured_is_not_taken_for_the_best(tmp_path):
    strong = subject(lambda w, r: ProviderOverloadedError("full") if w == "good" else "Answer: 0")
    workers = [replace(w, strength=0.99 if w.id == "good" else 0.1) for w in strong.pool]
    found = await measured(
        tmp_path, replace(strong, pool=Pool(tuple(workers))), task_set(2, 2), "best-single"
    )
    assert found.strengths == {"good": None, "fair": 0.0, "bad": 0.0}
    assert {r.steps[0].worker for r in found.results["best-single"]} == {"fair"}
