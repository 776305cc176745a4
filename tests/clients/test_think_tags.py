"""`<think>` in the text of an answer is told apart where a setting says so, streamed and whole."""

import time

import pytest

from batuta.clients import WorkerSpec, open_client
from batuta.clients.http_target import Secret
from batuta.clients.think_tags import ThinkTagSplitter
from batuta.core import Request, Worker, WorkerId, user_message
from clients.cases import RecordingListener
from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = pytest.mark.anyio
ASKED = Request(messages=(user_message("x"),))
CASES = [
    ("tagged", "<think>\nHm, so.</think>\n\nFour.", "\nHm, so.", "Four."),
    ("tagged", "\n<think>Hm</think>Four.", "Hm", "Four."),
    ("tagged", "Four <think>no</think>.", "", "Four <think>no</think>."),
    ("tagged", "<thin air", "", "<thin air"),
    ("tagged", "<think>cut </thi", "cut </thi", ""),
    ("tagged", "<think></think>Four.", "", "Four."),
    ("tagged", "<think>a < b </ c</think>a </think> b", "a < b </ c", "a </think> b"),
    ("open", "Hm.</think>\nFour.", "Hm.", "Four."),
    ("open", "Hm.</think>\n \nFour.", "Hm.", "Four."),
    ("tagged", " \n\n<thin air", "", " \n\n<thin air"),
    ("tagged", " \n ", "", " \n "),
    ("off", "<think>Hm</think>Four.", "", "<think>Hm</think>Four."),
]


@pytest.mark.parametrize(("tags", "said", "reasoning", "text"), CASES)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 100])
async def test_reasoning_is_parted(http, tags, said, reasoning, text, streaming, chunk):
    async with FakeOpenAI(said, strict_openai=False, chunk=chunk) as server:
        spec = WorkerSpec(
            worker=Worker(id=WorkerId("ada"), model="m"),
            base_url=server.url,
            key=Secret(KEY),
            think_tags=tags,
        )
        listener = RecordingListener(streaming=streaming)
        reply = await open_client(spec, http).complete(ASKED, listener)
    assert (reply.reasoning, reply.text) == (reasoning, text)
    if streaming:
        assert "".join(delta.text for delta in listener.deltas) == text
        assert "".join(delta.reasoning for delta in listener.deltas) == reasoning


@pytest.mark.parametrize(("tags", "said", "reasoning", "text"), [c for c in CASES if c[0] != "off"])
def test_every_cut_gives_the_same(tags, said, reasoning, text):
    for at in range(len(said) + 1):
        splitter = ThinkTagSplitter(tags)
        told = [splitter.feed(said[:at]), splitter.feed(said[at:]), splitter.flush()]
        assert "".join(thought for thought, _ in told) == reasoning
        assert "".join(answer for _, answer in told) == text


@pytest.mark.parametrize("said", ["", "<think>Hm</think>\n"], ids=["at the beginning", "behind"])
def test_blanks_that_come_one_by_one_take_time_linear_in_their_number(said):
    splitter = ThinkTagSplitter("tagged")
    splitter.feed(said)
    began = time.process_time()
    for _ in range(30_000):
        splitter.feed(" ")
    assert splitter.flush()[1] == ("" if said else " " * 30_000)
    assert time.process_time() - began < 0.3
