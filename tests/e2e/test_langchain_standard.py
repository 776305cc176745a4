"""LangChain's own standard tests of a chat model, on `ChatOpenAI` against this gateway.

They come with plugins that pytest is told not to load (pyproject.toml); what two of their
fixtures would be is never used here. Pictures are left out: these tests fetch theirs from the net.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from langchain_openai import ChatOpenAI

standard = pytest.importorskip(
    "langchain_tests.integration_tests", reason="langchain-tests is not installed"
)
SERVER = Path(__file__).parents[1] / "clients_node" / "server.py"
pytestmark = [  # LangChain's own
    pytest.mark.filterwarnings("ignore:The function `.*` is in beta:Warning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend):
    """Keeps one event loop for all of them: ChatOpenAI keeps its connections, which belong to it."""
    yield  # noqa: PT022 - the loop lives while this waits


@pytest.fixture(scope="module")
def base():
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    yield f"{process.stdout.readline().strip()}/v1"
    process.terminate()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def benchmark():
    """For `test_stream_time`, which skips itself: it measures recorded answers only."""


@pytest.fixture
def vcr():
    """As `benchmark`."""


class Standard(standard.ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _at(self, base):
        self.base = base

    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        known = {"base_url": self.base, "api_key": "none", "max_retries": 0}
        return {
            "model": "batuta-ultra",
            "stream_usage": True,
            "use_responses_api": self.api,
            **known,
        }

    @property
    def model_override_value(self):
        return "batuta-mini"

    @property
    def supports_json_mode(self):
        return True


class TestChatCompletions(Standard):
    api = False


class TestResponses(Standard):
    api = True
