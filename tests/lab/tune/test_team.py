"""Which workers of a larger pool a tuning goes on with: those that complete one another."""

import json
from dataclasses import replace

import anyio
import numpy as np
import pytest

from batuta.core import Pool, WorkerId
from batuta.lab.tune.report import describe_tuning, render_markdown
from batuta.lab.tune.team import choose_complementary, effective_limit
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from lab.tune.test_tuning import tune
from lab.tune.worlds import World, expert

pytestmark = pytest.mark.anyio
CROWD = World(
    "crowd",
    {
        "ada": expert("bills"),
        "eve": 0.25,
        "ben": expert("roads"),
        "fay": 0.25,
        "cleo": expert("verbs"),
        "gus": 0.25,
    },
)


def chosen(scores, most, usd=None):
    score_qm = np.array(scores, float)
    share_gm = score_qm.mean(axis=0, keepdims=True)
    usd_m = np.zeros(score_qm.shape[1]) if usd is None else np.array(usd)
    return choose_complementary(score_qm, share_gm, weight_g=np.ones(1), usd_m=usd_m, most=most)


class TestChoice:
    def test_the_best_is_first_and_who_completes_it_second(self):
        best, alike, other = [1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]
        assert chosen(np.transpose([alike, other, best]), 2) == [2, 1]

    def test_groups_count_beside_questions(self):
        """Of two that cover as much, the one that is best in a group is worth more."""
        score_qm = np.array(
            [[1, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 1, 0]], float
        )
        share_gm = np.array([[1, 0, 0.3], [0, 0.7, 0.3]])
        found = choose_complementary(
            score_qm, share_gm, weight_g=np.array([0.5, 0.5]), usd_m=np.zeros(3), most=2
        )
        assert found == [0, 1]

    def test_the_rest_is_chosen_together(self):
        """The best alone is a generalist; two experts beside it are worth more than two like it."""
        generalist = [1, 1, 0, 1, 1, 0, 1, 1, 0]
        alike = [1, 0, 0, 1, 1, 0, 1, 1, 0]
        experts = [[0] * 2 + [1] + [0] * 6, [0] * 5 + [1] + [0] * 2 + [1]]
        assert chosen(np.transpose([alike, *experts, generalist]), 3) == [3, 1, 2]

    def test_of_a_large_pool_one_after_another(self):
        rng = np.random.default_rng(0)
        scores = rng.random((200, 60)) < 0.1
        found = chosen(scores, 6)
        assert len(set(found)) == 6
        greedy = scores[:, found].max(axis=1).mean()
        assert greedy > max(
            scores[:, rng.permutation(60)[:6]].max(axis=1).mean() for _ in range(20)
        )

    def test_of_equal_ones_the_cheaper(self):
        same = [1, 0, 1, 0]
        scores = np.transpose([same, same, [0, 1, 0, 0]])
        assert chosen(scores, 1, usd=[0.2, 0.1, 0.1]) == [1]
        assert chosen(scores, 1, usd=[np.inf, 0.1, 0.1]) == [1]

    def test_no_more_than_there_are(self):
        assert sorted(chosen(np.eye(3), 5)) == [0, 1, 2]

    def test_a_pool_that_is_small_enough_is_left_as_it_is(self):
        assert effective_limit(3, CROWD.pool) == 3
        assert effective_limit(6, CROWD.pool) is None
        assert effective_limit(None, CROWD.pool) is None


async def test_a_tuning_goes_on_with_those_that_complete_one_another():
    result, meter, parts, settings = await tune(CROWD, 1200, most_workers=3)
    assert result.team.workers == ("ada", "ben", "cleo")
    assert result.team.passed_over == ("eve", "fay", "gus")
    assert 0.5 < result.team.covered <= result.team.covered_by_all <= 1
    used = {step.worker for one in result.systems for c in one.library for step in c.steps}
    assert used <= set(result.team.workers)
    assert len(result.cards) == 6 and not result.left_out
    found = describe_tuning(result, parts, settings, meter)
    told = render_markdown(found)
    assert "The search used ada, ben, cleo, not eve, fay, gus." in told
    found["team"]["passed_over"] = ()
    assert "The search used" not in render_markdown(found)


async def test_a_worker_that_is_no_model_stays():
    runner = World("runner", dict.fromkeys(("ada", "ben", "cleo", "tool"), 0.5))
    tagged = Pool(
        tuple(replace(w, tags=("program",) if w.id == "tool" else ()) for w in runner.pool)
    )
    result, *_ = await tune(runner, 900, pool=tagged, most_workers=2)
    assert WorkerId("tool") in result.team.workers and len(result.team.workers) == 3


def says(body):
    """One worker knows even numbers, the other odd ones."""
    number = int(json.dumps(body["messages"]).rpartition("number ")[2].split("?")[0])
    knows = number % 2 == (body["model"] == "model-b")
    return f"Answer: {number if knows else -1}"


async def test_what_eval_has_paid_costs_a_tuning_nothing(tmp_path, command_line):
    """One journal: the tuning makes no call that the evaluation has made."""
    async with FakeOpenAI(says, strict_openai=False) as server:
        workers = (
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{server.url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1.0, output = 1.0 }}\n'
            for name in "ab"
        )
        (tmp_path / "pool.toml").write_text("\n".join(workers))
        lines = ({"question": f"What is number {n}?", "answer": n} for n in range(40))
        (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
        env = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TEST_KEY": KEY}
        shared = ("--pool", "pool.toml", "--tasks", "own.jsonl", "--journal", "calls.db")

        async def made(*args):
            """The calls of a command, without what differs from one attempt to the next."""
            server.requests.clear()
            done = await anyio.to_thread.run_sync(
                lambda: command_line.run(*args, *shared, cwd=tmp_path, env=env)
            )
            assert done.returncode == 0, done.stderr
            return [json.dumps(request.body, sort_keys=True) for request in server.requests]

        paid = await made("eval", "--systems", "a,b", "--limit", "40", "--out", "measured")
        assert len(set(paid)) == len(paid) == 80
        tuned = await made("tune", "--calls", "200", "--no-rewrite", "--out", "tuned")
        assert tuned and not set(tuned) & set(paid)
