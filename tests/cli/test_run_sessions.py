"""`batuta runs sessions`: what conducting saved, by estimate."""

import json
import os
from decimal import Decimal

import pytest
from tests.store.strategies import make_run

from batuta.store import Store

pytestmark = pytest.mark.anyio


async def test_sessions_are_shown_with_what_they_saved(tmp_path, command_line):
    home = tmp_path / "home"

    def batuta(*args):
        env = {**os.environ, "BATUTA_HOME": str(home), "COLUMNS": "120"}
        return command_line.run("runs", "sessions", *args, cwd=tmp_path, env=env)

    async with Store(home / "runs.db"):
        pass
    assert "no sessions yet" in batuta().stdout
    async with Store(home / "runs.db") as store:
        for number in range(3):
            usd = Decimal("0.25") if number < 2 else None
            await store.append(make_run(number), session=f"ses_{number}", alone_usd=usd)
    done = batuta()
    assert done.returncode == 0, done.stderr
    assert "ses_0" in done.stdout and "–" in done.stdout
    assert "$0.50" in done.stdout and "by estimate" in done.stdout
    told = json.loads(batuta("--json").stdout)
    assert told["total"]["runs"] == 2 and len(told["sessions"]) == 3
    assert told["total"]["best_single_usd_estimate"] == "0.5"
    wrong = batuta("--since", "soon")
    assert wrong.returncode == 2 and "--since" in wrong.stderr
