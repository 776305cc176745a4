"""A training is asked to stop from its screen, by those alone who may."""

from __future__ import annotations

import json
import shutil

import pytest

from batuta.gateway.ui.learning import ResultFolder
from gateway.ui.page_server import ADMIN, PageServer
from gateway.ui.visitors import sign_in, token_of


def running(folder):
    """A training that has just ended its third step, and the address of its screen."""
    place = folder / "learning" / "mine"
    place.mkdir(parents=True)
    lines = [{"step": n, "reward": n / 5, "step_time": 1.0} for n in range(1, 4)]
    place.joinpath("metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    place.joinpath("settings.json").write_text('{"optimiser": {"steps": 20}}')
    return place, f"/ui/learning/training/{ResultFolder(place, 'mine', 0.0).mark}"


@pytest.mark.anyio
async def test_nobody_but_the_admin_stops_a_training_of_a_server_with_keys(tmp_path, browse):
    place, address = running(tmp_path)
    with PageServer(tmp_path, pace=0.0, keyed=True).open() as app_state:
        _, issued = app_state.call(app_state.store.keys.create, app_state.mint, "acme", "laptop")
        tenant, admin = browse(app_state), browse(app_state)
        await sign_in(tenant, issued.text)
        await sign_in(admin, ADMIN)
        form = {"token": await token_of(tenant, "/ui/usage")}
        async with tenant.get(address) as response:
            assert response.status == 200 and f"{address}/stop" not in await response.text()
        async with tenant.post(f"{address}/stop", data=form) as response:
            assert response.status == 404
        async with admin.post(f"{address}/stop", data=form) as response:
            assert response.status == 403, "another visitor's token"
        assert not (place / "stop").exists()
        form = {"token": await token_of(admin, address)}
        async with admin.post("/ui/learning/training/none/stop", data=form) as response:
            assert response.status == 404
        elsewhere = tmp_path / "elsewhere"
        (place / "stop").symlink_to(elsewhere)
        async with admin.post(f"{address}/stop", data=form, allow_redirects=False) as response:
            assert response.status == 303 and response.headers["location"] == address
        assert not elsewhere.exists(), "a link is not followed"
        records = app_state.call(app_state.store.audit.list, 10)
        assert ("training.stopped", "mine") in [(one.action, one.subject) for one in records]
        shutil.rmtree(place)
        async with admin.post(f"{address}/stop", data=form) as response:
            assert response.status == 404
