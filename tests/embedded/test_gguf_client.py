"""What llama.cpp reports in this process is told as any client's failure."""

import pytest

from batuta.core import Request, user_message
from batuta.embedded.gguf_client import GgufClient
from batuta.errors import ContextLengthError, InvalidReplyError

pytestmark = pytest.mark.anyio
OVERFLOW = {
    "code": 400,
    "message": "request (6031 tokens) exceeds the available context size (4096 tokens)",
    "type": "exceed_context_size_error",
}


class Failing:
    """llama.cpp's server, which sends one chunk."""

    def __init__(self, chunk):
        self.chunk = chunk

    def handle_chat_completions(self, _body, take_chunk):
        assert take_chunk(self.chunk)


@pytest.mark.parametrize(
    ("chunk", "kind", "told"),
    [
        ({"error": OVERFLOW}, ContextLengthError, "no room .* 4096 positions of tiny: shorten it"),
        ({"error": {"code": 500, "message": "it broke"}}, InvalidReplyError, "failed: it broke$"),
        ({"error": "it broke"}, InvalidReplyError, "llama.cpp failed: .*it broke"),
        ("[DONE", InvalidReplyError, "llama.cpp failed: "),
    ],
)
async def test_every_failure_is_a_sentence(chunk, kind, told):
    with pytest.raises(kind, match=told):
        await GgufClient("tiny", Failing(chunk)).complete(Request(messages=(user_message("Hi."),)))
