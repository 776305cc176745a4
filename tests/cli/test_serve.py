"""`batuta serve` as a process: settings read again, requests logged, an ordered end."""

import os
import signal
import sys

import aiohttp
import anyio
import orjson
import pytest

POOL = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "http://127.0.0.1:9/v1"
model = "m"

"""


class Server:
    """The process, for the length of a block."""

    def __init__(self, folder, *options):
        self.command = [sys.executable, "-m", "batuta", "serve", "--port", "0", *options]
        self.environ = {**os.environ, "BATUTA_HOME": str(folder / "home")}
        self.said = ""

    async def __aenter__(self):
        self.process = await anyio.open_process(self.command, env=self.environ)
        await self.until("/v1\n")
        url = self.said.split("at http://")[1].split("/v1")[0]
        self.http = aiohttp.ClientSession(f"http://{url}")
        return self

    async def until(self, words):
        """Reads what it says until it has said that."""
        with anyio.fail_after(40):
            while words not in self.said:
                self.said += (await self.process.stderr.receive()).decode()

    async def models(self):
        async with self.http.get("/v1/models") as response:
            return {model["id"] for model in (await response.json())["data"]}

    async def __aexit__(self, *_):
        await self.http.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.aclose()


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
