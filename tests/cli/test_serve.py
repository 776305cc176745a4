"""`batuta serve` as a process: settings read again, requests logged, an ordered end."""

import signal
import sys

import anyio
import orjson
import pytest

from fakes.serving import Server

POOL = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "http://127.0.0.1:9/v1"
model = "m"

"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_the_settings_are_read_again_on_hangup_and_wrong_ones_change_nothing(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada"))
    async with Server(tmp_path, "--pool", str(file)) as server:
        assert "worker/bob" not in await server.models()
        file.write_text(POOL.format(id="ada") + POOL.format(id="bob"))
        server.process.send_signal(signal.SIGHUP)
        await server.until("the settings were read again: 2 workers\n")
        assert {"worker/ada", "worker/bob"} <= await server.models()
        file.write_text("[[workers]]\nid = 7\n")
        server.process.send_signal(signal.SIGHUP)
        await server.until("batuta: the settings stay as they were: ")
        assert {"worker/ada", "worker/bob"} <= await server.models()


async def test_requests_are_logged_as_json_and_the_end_is_orderly(tmp_path):
    async with Server(tmp_path, "--pool", "rehearsal", "--log", "json") as server:
        async with server.http.get("/healthz", headers={"x-request-id": "mine"}) as response:
            assert response.status == 200
        await server.until("}\n")
        server.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            assert await server.process.wait() == 0
    (line,) = [orjson.loads(line) for line in server.said.splitlines() if line.startswith("{")]
    assert (line["route"], line["status"], line["request_id"]) == ("/healthz", 200, "mine")
