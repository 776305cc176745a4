"""A tuning with answers that a worker grades: its calls are paid once, counted, and never a guess."""

import json

import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.clients.cache import CallCache, CallCacheClient
from batuta.core import Pool, Task, TaskId, Worker, WorkerId
from batuta.lab.evals.grading import open_answer_grader
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner, JudgeClient
from batuta.lab.tune.library import Candidate
from batuta.lab.tune.remote_runs import RemoteRuns, TuneRunJob
from batuta.lab.tune.spending import Allowance, BudgetedClient, PaidCalls, TuneBudget
from batuta.usage import ASSUMED_PRICE
from fakes.executors import Pickling
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from lab.tune.worlds import PRICE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
QUESTIONS = 40
TASKS = tuple(
    Task(id=TaskId(str(n)), question=f"What is number {n}?", target=f"thing {n}", grader="judge")
    for n in range(8)
)


def reply_to(body):
    """Every worker tells a story of its own, and the judge likes that of the first worker."""
    if "You grade an answer" in json.dumps(body["messages"]):
        return f"GRADE: {int('model-a' in json.dumps(body['messages']))}"
    return f"A story by {body['model']}"


async def test_a_judge_is_paid_once_and_counts_like_the_other_calls(tmp_path, command_line):
    env = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TEST_KEY": KEY}
    command = ("tune", "--pool", "pool.toml", "--tasks", "own.jsonl", "--no-rewrite",
               "--judge", "j", "--calls", "300", "--out", "out")  # fmt: skip
    asked = (
        {"question": f"What is number {n}?", "answer": f"thing {n}", "grader": "judge"}
        for n in range(QUESTIONS)
    )
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, asked)))
    async with FakeOpenAI(reply_to, strict_openai=False) as server:
        workers = (
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{server.url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1.0, output = 1.0 }}\n'
            for name in "abj"
        )
        (tmp_path / "pool.toml").write_text("\n".join(workers))
        found, made = [], []
        for _ in range(2):
            done = await anyio.to_thread.run_sync(
                lambda: command_line.run(*command, cwd=tmp_path, env=env)
            )
            assert done.returncode == 0, done.stderr
            assert "count against the budget" not in done.stdout
            found.append((tmp_path / "out" / "report.json").read_bytes())
            made.append(len(server.requests))
            server.requests.clear()
    report = json.loads(found[0])
    assert report["spent"]["calls"] == made[0] <= 300, "the judge's calls are among them"
    assert found[1] == found[0] and made[1] == 0, "a second start pays nobody again"
    assert report["judged"][0]["questions"] == 10, "the stages leave money for the judge"


@pytest.mark.parametrize("executor", [None, Pickling])
@pytest.mark.parametrize("most", [12, 100])
async def test_where_the_budget_refuses_a_judge_no_answer_counts_as_undecided(
    tmp_path, executor, most
):
    pool = Pool(tuple(Worker(id=WorkerId(n), model=n, price=PRICE) for n in ("a", "j")))
    inner = {
        WorkerId("a"): ScriptedClient(lambda _: "A story", price=PRICE),
        WorkerId("j"): ScriptedClient(lambda _: "GRADE: 1", price=PRICE),
    }
    with CallCache(tmp_path / "calls.db") as calls, PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(calls=most), paid)
        clients = {
            one.id: CallCacheClient(BudgetedClient(inner[one.id], one, budget), calls, one.id)
            for one in pool
        }
        meter, judge = CallMeter(ASSUMED_PRICE), WorkerId("j")
        judging = JudgeClient(pool[judge], clients[judge], meter, 0)
        async with open_answer_grader(TASKS, judging) as grade:
            runner = CandidateRunner(
                pool, clients, grade, meter, unknown=ASSUMED_PRICE, grades_steps=False
            )
            if executor is not None:
                job = TuneRunJob(
                    pool=pool, ranked=pool, unknown=ASSUMED_PRICE, seed=0, grades_steps=False,
                    kinds=TASKS, grade=None, judge=judge, sandbox="auto",
                )  # fmt: skip
                runner.elsewhere = RemoteRuns(executor(), job, clients, meter)
            one = Candidate.single(WorkerId("a"))
            whole = await runner.run_all((task, one) for task in TASKS)
            results = [runner.find_result(task, one) for task in TASKS]
        assert budget.calls == meter.calls == min(most, 2 * len(TASKS))
    assert whole == (most > 2 * len(TASKS))
    assert {one and one.score for one in results} == ({1.0} if whole else {None})
    assert whole or results == [None] * len(TASKS)
