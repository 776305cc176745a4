"""A server of a settings file searches for its clients; one without such settings loads nothing of it."""

import subprocess
import sys

import pytest

from fakes.openai import FakeOpenAI
from fakes.server import KEY, Said
from fakes.serving import Server
from fakes.web import FakeWeb

pytestmark = pytest.mark.anyio
LOADED = """
import sys
import batuta.cli.ask, batuta.cli.serve, batuta.config.load, batuta.gateway.assemble
print([name for name in sys.modules if name.split(".")[0] in {"trafilatura", "pypdf", "mcp", "lxml"} or name.startswith("batuta.tools")])
"""


def test_nothing_is_loaded_before_it_is_wanted():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def settings_text(fake, provider):
    return f"""
[[workers]]
id = "ada"
model = "m"
base_url = "{provider.url}"
key_env = "ADA_KEY"
tags = ["tools"]
price = {{ input = 1, output = 2 }}

[tools.search]
engine = "brave"
base_url = "{fake.url}"
price = 0.005
server_tool = true
"""


async def test_a_server_of_a_settings_file_searches(tmp_path):
    def answer(body):
        if body["messages"][-1]["role"] == "tool":
            return Said("In 1822 [1].")
        return Said(calls=(("c1", "web_search", {"query": "Imola observatory"}),))

    async with FakeWeb() as fake, FakeOpenAI(answer) as provider:
        path = tmp_path / "batuta.toml"
        path.write_text(settings_text(fake, provider))
        async with Server(
            tmp_path, "--pool", str(path), ADA_KEY=KEY, BRAVE_API_KEY="key"
        ) as server:
            body = {"model": "worker/ada", "input": "When?", "tools": [{"type": "web_search"}]}
            async with server.http.post("/v1/responses", json=body) as response:
                got = await response.json()
        assert [item["type"] for item in got["output"]] == ["web_search_call", "message"], got
        cited = got["output"][1]["content"][0]["annotations"]
        assert cited[0]["url"] == f"{fake.url}/imola-observatory"
        assert "x-batuta-ignored" not in response.headers
        assert float(response.headers["x-batuta-cost-usd"]) > 0.005
        first, second = provider.requests
        assert [tool["function"]["name"] for tool in first.body["tools"]] == ["web_search"]
        assert (
            second.body["messages"][-1]["role"] == "tool"
            and "[1] " in second.body["messages"][-1]["content"]
        )
        assert len(fake.searches) == 1
