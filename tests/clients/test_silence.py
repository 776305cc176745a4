"""How long a provider may say nothing: models that reason do, and what they think is billed."""

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Request, WorkerId, user_message
from batuta.errors import ProviderTimeoutError
from fakes.openai import FakeOpenAI

pytestmark = pytest.mark.anyio
ASK = Request(messages=(user_message("Think about it."),))


@pytest.mark.parametrize("written", ["", "[resilience]\nstep_timeout_s = 0.1\n"])
async def test_a_call_is_given_up_after_a_silence(tmp_path, written):
    async with HttpTransport(idle=0.3) as http, thinking() as server:
        with pytest.raises(ProviderTimeoutError, match=r"silent for 0\.3 seconds"):
            await ask(server, http, tmp_path, written)


async def test_a_step_that_may_take_longer_may_be_silent_for_as_long(tmp_path):
    async with HttpTransport(idle=0.3) as http, thinking() as server:
        reply = await ask(server, http, tmp_path, "[resilience]\nstep_timeout_s = 60\n")
        assert reply.text == "42"


def thinking():
    return FakeOpenAI("42", latency=0.8, check=False)


async def ask(server, http, folder, written):
    path = folder / "batuta.toml"
    worker = f'[[workers]]\nid = "ada"\nmodel = "m"\nbase_url = "{server.url}"\n'
    path.write_text(f"{worker}{written}")
    config = await load_config(http, pool=str(path), environ={})
    return await config.clients[WorkerId("ada")].complete(ASK)
