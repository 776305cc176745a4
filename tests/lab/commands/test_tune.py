"""Options of `batuta tune` that cannot mean what the user hopes are refused before any call."""

import json

import anyio
import pytest

from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("options", "code"), [((), 2), (("--calls", "100"), 0), (("--minutes", "5"), 0)]
)
async def test_dollars_are_no_limit_for_workers_that_cost_nothing(
    tmp_path, command_line, options, code
):
    """A tuning of free workers that only dollars limit would never end."""
    (tmp_path / "pool.toml").write_text(
        '[[workers]]\nid = "a"\nmodel = "a"\nbase_url = "http://127.0.0.1:9/v1"\n'
        'key_env = "TEST_KEY"\nprice = { input = 0, output = 0 }\n'
    )
    lines = ({"question": f"What is number {n}?", "answer": n} for n in range(40))
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    env = {"BATUTA_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "TEST_KEY": KEY}
    args = ("tune", "--pool", "pool.toml", "--tasks", "own.jsonl", "--budget", "5", "--check")
    done = await anyio.to_thread.run_sync(
        lambda: command_line.run(*args, *options, cwd=tmp_path, env=env)
    )
    assert done.returncode == code, done.stderr
    assert ("set --calls N or --minutes M" in done.stderr) == bool(code)


async def test_simulated_workers_that_the_environment_names_are_asked_about_their_world(
    tmp_path, command_line
):
    env = {"BATUTA_HOME": str(tmp_path), "HOME": str(tmp_path), "BATUTA_CONFIG": "rehearsal"}
    args = ("tune", "--calls", "60", "--limit", "60", "--stages", "calibrate,search")
    done = await anyio.to_thread.run_sync(lambda: command_line.run(*args, cwd=tmp_path, env=env))
    assert done.returncode == 0, done.stderr
    assert "try it: batuta ask --pool rehearsal --conductor" in done.stdout


@pytest.mark.parametrize("option", ["--budget", "--minutes", "--worth", "--call-weight"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
async def test_a_number_that_is_none_is_refused_by_its_option(
    tmp_path, command_line, option, value
):
    env = {"BATUTA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    args = ("tune", "--pool", "rehearsal", "--calls", "60", f"{option}={value}", "--check")
    done = await anyio.to_thread.run_sync(lambda: command_line.run(*args, cwd=tmp_path, env=env))
    assert done.returncode == 2 and f"{option} must be at" in done.stderr
