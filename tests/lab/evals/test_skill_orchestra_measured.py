"""`batuta eval --systems skillorchestra` over a pool on loopback in which skills matter."""

import json

import anyio
import pytest

from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
FOUND = json.dumps(
    {
        "categories": [
            {"name": kind, "skills": [{"skill_id": kind, "description": f"works with {kind}"}]}
            for kind in ("numbers", "words")
        ]
    }
)


def says(body):
    """`a` knows numbers, `b` words; whoever is asked for skills names them."""
    text = body["messages"][-1]["content"]
    if "Find the skills" in text:
        return FOUND
    asked = text.rpartition("Question:")[2].partition("Write one")[0]
    kind = "numbers" if "number" in asked else "words"
    if "Skills:" in text:
        return json.dumps({"required_skills": [{"skill_id": f"{kind}.{kind}", "percentage": 100}]})
    knows = {"model-a": "numbers", "model-b": "words"}[body["model"]] == kind
    return f"Answer: {text.split()[-1].rstrip('?') if knows else -1}"


async def test_it_is_right_where_each_worker_knows_one_kind(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as server:
        workers = (
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{server.url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1.0, output = 1.0 }}\n'
            for name in "ab"
        )
        (tmp_path / "pool.toml").write_text("\n".join(workers))
        lines = (
            {"question": f"What is {('number', 'word')[n % 2]} {n}?", "answer": n}
            for n in range(60)
        )
        (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
        env = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TEST_KEY": KEY}
        args = (
            *("eval", "--pool", "pool.toml", "--tasks", "own.jsonl", "--limit", "20", "--json"),
            *("--systems", "best-single,skillorchestra", "--out", "out"),
        )

        async def measured():
            server.requests.clear()
            done = await anyio.to_thread.run_sync(
                lambda: command_line.run(*args, cwd=tmp_path, env=env)
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)["systems"]

        found = await measured()
        assert found["best-single"]["accuracy"] == 0.5
        assert found["skillorchestra"]["accuracy"] == 1
        assert found["skillorchestra"]["calls"] == 2
        asked = len(server.requests)
        assert asked > 0
        assert await measured() == found and not server.requests
