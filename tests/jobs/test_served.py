"""Background responses of a real server that is killed, over a provider that counts its calls."""

import asyncio
import signal
from collections import Counter

import anyio

from fakes.openai import FakeOpenAI
from fakes.server import KEY
from fakes.serving import Server

POOL = """
[conductor]
worker = "vote"

"""
WORKER = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "{url}"
key_env = "PROVIDER_KEY"
model = "m-{id}"
strength = 0.{strength}
price = {{ input = 1, output = 2 }}

"""
ASK = {"model": "batuta-ultra", "input": "What is it?", "background": True}


class Gated(FakeOpenAI):
    """Counts each model's calls; those that follow the first three wait for the gate."""

    def __init__(self):
        super().__init__(self._say, strict_openai=False)
        self.calls = Counter()
        self.total = 0
        self.gate, self.reached = asyncio.Event(), asyncio.Event()
        self.dropped = asyncio.Event()

    def _say(self, body):
        return f"{body['model']} said it"

    async def handle(self, request):
        self.total += 1
        self.calls[(await request.json())["model"]] += 1
        if self.total > 3:
            self.reached.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.dropped.set()
                raise
        return await super().handle(request)


def settings(folder, provider):
    workers = "".join(
        WORKER.format(id=name, url=provider.url, strength=9 - at)
        for at, name in enumerate(("ada", "bob", "cyd"))
    )
    file = folder / "batuta.toml"
    file.write_text(POOL + workers)
    return str(file)


async def answer(server, name):
    with anyio.fail_after(60):
        while True:
            async with server.http.get(f"/v1/responses/{name}") as response:
                body = await response.json()
            if body["status"] not in {"queued", "in_progress"}:
                return body
            await anyio.sleep(0.1)


async def submitted(server):
    async with server.http.post("/v1/responses", json=ASK) as response:
        body = await response.json()
        assert (response.status, body["status"]) == (200, "queued"), body
    return body["id"]


async def test_a_killed_server_goes_on_and_pays_for_no_finished_step_again(tmp_path):
    async with Gated() as provider:
        options = ("--pool", settings(tmp_path, provider))
        async with Server(tmp_path, *options, PROVIDER_KEY=KEY) as server:
            name = await submitted(server)
            with anyio.fail_after(60):
                await provider.reached.wait()
            await server.end(signal.SIGKILL)
        before = Counter(provider.calls)
        provider.gate.set()
        async with Server(tmp_path, *options, PROVIDER_KEY=KEY) as server:
            body = await answer(server, name)
            assert body["status"] == "completed", body
            assert "said it" in body["output"][-1]["content"][0]["text"]
            async with server.http.get(f"/v1/responses/{name}?stream=true") as response:
                text = (await response.read()).decode()
    paid_again = provider.total - sum(before.values())
    assert paid_again == 1, "only the call in flight is paid again"
    numbers = [
        int(line.split('"sequence_number":')[1].split(",")[0].rstrip("}"))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    assert numbers == list(range(len(numbers))) and text.count("event: response.completed") == 1


async def test_cancelling_a_background_response_stops_its_paid_call(tmp_path):
    async with Gated() as provider:
        async with Server(
            tmp_path, "--pool", settings(tmp_path, provider), PROVIDER_KEY=KEY
        ) as server:
            name = await submitted(server)
            with anyio.fail_after(60):
                await provider.reached.wait()
            with anyio.fail_after(60):
                async with server.http.post(f"/v1/responses/{name}/cancel") as response:
                    assert (await response.json())["status"] == "cancelled"
                await provider.dropped.wait()
            assert (await answer(server, name))["status"] == "cancelled"
    assert provider.total == 4
