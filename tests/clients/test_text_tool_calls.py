"""Calls of tools that a model writes into its answer: which are calls, and what a stream shows of them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.text_tool_calls import TextCallClient, find_calls
from batuta.core import CallListener, Delta, Finish, Reply, Request, Tool, ToolCall, user_message
from batuta.core.conductor import NULL_LISTENER, NullListener
from clients.cases import worker

pytestmark = pytest.mark.anyio

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
NAMES = {"weather", "time"}
CALLS = {
    "bare": CALL,
    "blanks around": f"\n  {CALL}\n",
    "code block": f"```json\n{CALL}\n```",
    "code block without a name": f"```\n{CALL}\n```",
    "code block that is not closed": f"```json\n{CALL}",
    "tag": f"<tool_call>\n{CALL}\n</tool_call>",
    "another tag": f"<tools>{CALL}</tools>",
    "list": f"[{CALL}]",
    "Mistral's sign": f"[TOOL_CALLS][{CALL}]",
    "Mistral's sign behind words": f"I look. [TOOL_CALLS]{CALL}",
    "Mistral's name before the arguments": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    "Mistral's name at once": 'I look. [TOOL_CALLS]weather{"city": "Rome"}',
    "Kimi's marks": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "Llama's name in a tag": '<function=weather>{"city": "Rome"}</function>',
    "Granite's sign": f"<|tool_call|>[{CALL}]",
    "Nemotron's tag": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "Llama's sign": f"<|python_tag|>{CALL.replace('arguments', 'parameters')}",
    "parameters": CALL.replace("arguments", "parameters"),
    "arguments as a text": json.dumps({"name": "weather", "arguments": '{"city": "Rome"}'}),
    "as OpenAI has it": json.dumps({"id": "1", "type": "function", "function": json.loads(CALL)}),
    "words before": f"I look it up.\n```json\n{CALL}\n```",
}
ANSWERS = {
    "words": "It is sunny.",
    "a tool that was not offered": CALL.replace("weather", "rain"),
    "no arguments": '{"name": "weather"}',
    "arguments that are no object": '{"name": "weather", "arguments": 3}',
    "more fields": '{"name": "weather", "arguments": {}, "price": 3}',
    "bare behind words": f"So: {CALL}",
    "words behind it": f"```json\n{CALL}\n```\nThis is how it is called.",
    "cut off": CALL[:-3],
    "a name that was not offered": '[TOOL_CALLS]rain[ARGS]{"city": "Rome"}',
    "a name and words": "<function=weather> is how it begins.",
    "a mark without a name": '<|tool_call_begin|>{"city": "Rome"}',
    "a program": '```python\nprint({"name": "weather", "arguments": {}})\n```',
    "a file": '```json\n{"name": "batuta", "version": "1"}\n```',
    "deep": "[" * 5000,
    "a number": "12",
    "empty": "",
}


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_what_is_a_call(text):
    before, (call,) = find_calls(text, NAMES)
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Rome"}
    assert text.startswith(before) and CALL[2:6] not in before


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
def test_what_is_an_answer(text):
    assert find_calls(text, NAMES) == (text, ())


def test_several_calls_have_ids_of_their_own():
    other = CALL.replace("weather", "time")
    for text in (f"{CALL}\n{other}", f"<tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>", f"[{CALL}, {other}]"):  # fmt: skip
        _, calls = find_calls(text, NAMES)
        assert [call.name for call in calls] == ["weather", "time"]
        assert len({call.id for call in calls}) == 2


class Pieces:
    """A model whose answer comes in those pieces."""

    def __init__(self, pieces, **reply):
        self.pieces, self.reply = pieces, reply

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        for piece in self.pieces:
            await listener.on_delta(Delta(text=piece))
        return Reply(text="".join(self.pieces), **self.reply)


class Stream(NullListener):
    streaming = True

    def __init__(self):
        self.deltas = []

    async def on_delta(self, delta):
        self.deltas.append(delta)

    @property
    def text(self):
        return "".join(delta.text for delta in self.deltas)

    @property
    def calls(self):
        return tuple(
            ToolCall(id=one.tool_id, name=one.tool_name, arguments=one.tool_arguments)
            for one in self.deltas
            if one.tool_index is not None
        )


def request(**more):
    tools = tuple(Tool(name=name, description="", parameters={}) for name in sorted(NAMES))
    return Request(messages=(user_message("How is the weather?"),), **{"tools": tools, **more})


def pieces_of(text):
    cuts = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return cuts.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


TEXTS = st.sampled_from([*CALLS.values(), *ANSWERS.values()]) | st.lists(
    st.sampled_from(["```", "json", "\n", " ", CALL, "<tool_call>", "</tool_call>", "a", "`", "<", "[", "[TOOL_CALLS]", "{", '"name"'])
).map("".join)  # fmt: skip


@given(TEXTS.flatmap(pieces_of))
async def test_a_stream_shows_what_the_reply_has_and_nothing_is_lost(pieces):
    stream = Stream()
    reply = await TextCallClient(Pieces(pieces), worker()).complete(request(), stream)
    assert stream.text == reply.text and stream.calls == reply.tool_calls
    assert reply.finish is (Finish.TOOL_CALLS if reply.tool_calls else Finish.STOP)
    said = "".join(pieces)
    assert said.startswith(reply.text) if reply.tool_calls else said == reply.text


@given(pieces_of("```python\nprint(1)\n```\nand `more` <b>of</b> it"))
async def test_an_answer_that_is_no_call_is_not_kept_back(pieces):
    stream = Stream()
    await TextCallClient(Pieces([*pieces, "."]), worker()).complete(request(), stream)
    assert stream.deltas[-1].text == "."


@pytest.mark.parametrize(
    "asked", [request(tools=()), request(tool_choice="none")], ids=["no tools", "forbidden"]
)
async def test_where_no_call_is_wanted_the_text_stays(asked):
    reply = await TextCallClient(Pieces([CALL]), worker()).complete(asked, Stream())
    assert reply.text == CALL and not reply.tool_calls


HOSTILE = {
    "marks": "```" * 300_000,
    "calls and a word": f"```json\n{CALL}\n```\n" * 20_000 + "word",
    "tags": "<tool_call>" * 100_000,
    "brackets": "[" * 1_000_000,
    "blanks": " " * 1_000_000 + "{",
    "beginnings": f"```{CALL[:-2]}" * 20_000,
    "lists": ('```[{"name": "weather", "arguments": {}}, 1]') * 20_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("size", [10**9, 5_000])
async def test_no_answer_takes_much_longer_to_read_than_words(text, size):
    async def seconds(said):
        pieces = [said[at : at + size] for at in range(0, len(said), size)]
        began = time.process_time()
        reply = await TextCallClient(Pieces(pieces), worker()).complete(request(), Stream())
        assert reply.text == said and not reply.tool_calls
        return time.process_time() - began

    assert await seconds(text) < 0.5 + 20 * await seconds("word " * (len(text) // 5))


SLOW = {
    "blanks": (" ", " "),
    "blanks behind a mark": ("```json", " "),
    "blanks behind a bracket": ("{", " "),
    "words behind a bracket and blanks": ("{" + " " * 300, "x" * 200),
    "an id without an end": ('{"id": "', "x" * 200),
}


@pytest.mark.parametrize(("begun", "piece"), SLOW.values(), ids=SLOW)
async def test_what_may_be_a_call_is_not_read_again_with_each_piece(begun, piece):
    pieces = [begun, *[piece] * 15_000]
    began = time.process_time()
    reply = await TextCallClient(Pieces(pieces), worker()).complete(request(), stream := Stream())
    assert stream.text == reply.text == "".join(pieces)
    assert time.process_time() - began < 0.7


async def test_calls_that_the_server_has_read_are_the_calls():
    own = ToolCall(id="1", name="time", arguments="{}")
    client = TextCallClient(Pieces([CALL], tool_calls=(own,)), worker())
    stream = Stream()
    reply = await client.complete(request(), stream)
    assert reply.tool_calls == (own,) and reply.text == stream.text == CALL
