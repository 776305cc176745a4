"""Calls of tools that a model writes into its answer: which are calls, and what a stream shows of them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients.openai.client import TextCallClient
from batuta.clients.text_tool_calls import find_calls
from batuta.core import CallListener, Delta, Finish, Reply, Request, Tool, ToolCall, user_message
from batuta.core.conductor import NULL_LISTENER, NullListener

pytestmark = pytest.mark.anyio

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = {"weather": SCHEMA, "time": {}}
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
    "Qwen3-Coder's tags": (
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "Qwen3-Coder's tags without the first": (
        "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    ),
    "GLM's tags": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
    ),
    "MiniMax's tags": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
    "DeepSeek's marks": (
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "DeepSeek's older marks": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "DeepSeek's tags": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "Granite's sign": f"<|tool_call|>[{CALL}]",
    "Nemotron's tag": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "Llama's sign": f"<|python_tag|>{CALL.replace('arguments', 'parameters')}",
    "Llama's list of Python": '[weather(city="Rome")]',
    "Llama 4's marks": "I look.<|python_start|>[weather(city='Rome',)]<|python_end|>",
    "Llama's sign before Python": '<|python_tag|>weather(city="Rome")',
    "Gemma's code block": '```tool_code\nweather(city="""Rome""")\n```',
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
    "tags and words behind them": (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call> is it."
    ),
    "tags of a tool that was not offered": "<function=rain>\n</function>",
    "tags without their end": "<function=weather>\n<parameter=city>\nRome\n</parameter>\n",
    "a value without its end": "<function=weather>\n<parameter=city>\nRome\n</function>",
    "a list of Python with a tool that was not offered": '[weather(city="Rome"), rain()]',
    "Python without its list": 'weather(city="Rome")',
    "Python behind words": 'So: [weather(city="Rome")]',
    "Python and words behind it": '[weather(city="Rome")] is how it is called.',
    "Python that is cut off": '[weather(city="Rome"',
    "Python by position": '[weather("Rome")]',
    "an expression of Python": '[weather(city=open("/etc/passwd").read())]',
    "a sum of Python": "[weather(city=1 + 1)]",
    "no value of JSON": '[weather(city=b"Rome")]',
    "more than a number": "[weather(city=1e999)]",
    "one argument twice": '[weather(city="Rome", city="Oslo")]',
    "a link": "[weather](https://weather.example)",
    "deep Python": "[weather(city=" + "[" * 5000,
    "long Python": "[weather(city=[" + "1, " * 9000 + "])]",
    "a program": '```python\nprint({"name": "weather", "arguments": {}})\n```',
    "a file": '```json\n{"name": "batuta", "version": "1"}\n```',
    "deep": "[" * 5000,
    "a number": "12",
    "empty": "",
}


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_what_is_a_call(text):
    before, (call,) = find_calls(text, TOOLS)
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Rome"}
    assert text.startswith(before) and CALL[2:6] not in before


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
def test_what_is_an_answer(text):
    assert find_calls(text, TOOLS) == (text, ())


def test_what_python_writes_is_told_as_json():
    text = """[weather(a=-3, b=[1, 2.5, (True,)], c={'x': None}, d='it\\'s\\u00e9 \\d', e=false), time()]"""
    _, calls = find_calls(text, TOOLS)
    assert [call.name for call in calls] == ["weather", "time"]
    assert json.loads(calls[0].arguments) == {
        "a": -3,
        "b": [1, 2.5, [True]],
        "c": {"x": None},
        "d": "it'sé \\d",
        "e": False,
    }


@pytest.mark.parametrize("literal", ["'{}'", '"{}"', "'''{}'''", '"""{}"""'])
@pytest.mark.parametrize("value", ["two\nlines", "tab\t", "漢字 é 👩", "[x(a=1)]", "\0", "a, b)"])
def test_a_text_of_python_is_taken_as_it_stands(literal, value):
    _, (call,) = find_calls(f"[weather(city={literal.format(value)}, days=3)]", TOOLS)
    assert json.loads(call.arguments) == {"city": value, "days": 3}


def in_tags(value):
    """The value as Qwen3-Coder and as GLM write it."""
    return (
        f"<tool_call>\n<function=weather>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>",
        f"<tool_call>weather\n<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
    )


TYPED = {
    "a text that is a number": ({"type": "string"}, "00123", "00123"),
    "a text that is JSON": ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    "a text of lines": ({"type": "string"}, "  a\n\n  b\n", "  a\n\n  b\n"),
    "a text with tags": ({"type": "string"}, "</parameter> </arg_value> <b>", "</parameter> </arg_value> <b>"),
    "a number": ({"type": "integer"}, "12", 12),
    "a fraction": ({"type": "number"}, "1.5", 1.5),
    "a whole number for a fraction": ({"type": "number"}, "2", 2),
    "true": ({"type": "boolean"}, "true", True),
    "true as Python has it": ({"type": "boolean"}, "True", True),
    "a list": ({"type": "array"}, '["a", 1]', ["a", 1]),
    "an object": ({"type": "object"}, '{"a": {"b": 1}}', {"a": {"b": 1}}),
    "no number": ({"type": "integer"}, "twelve", "twelve"),
    "a number where a list is wanted": ({"type": "array"}, "12", "12"),
    "null or a text": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
    "a text or null": ({"type": ["string", "null"]}, "12", "12"),
    "one of several": ({"enum": ["1", "2"]}, "1", "1"),
    "any": ({}, "12", 12),
    "any text": ({}, "twelve", "twelve"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "said", "meant"), TYPED.values(), ids=TYPED)
def test_a_value_between_tags_has_the_type_of_its_schema(schema, said, meant):
    tools = {"weather": {"type": "object", "properties": {"x": schema}}}
    for text in in_tags(said):
        _, (call,) = find_calls(text, tools)
        value = json.loads(call.arguments)["x"]
        assert value == meant and type(value) is type(meant)


def test_several_calls_between_tags_and_some_without_arguments():
    one, other = in_tags("1")
    for text in ("<tool_call>time</tool_call>\n" + other, f"{one}\n{other}", one + "\n<function=time>\n</function>"):  # fmt: skip
        _, calls = find_calls(text, TOOLS)
        assert len(calls) == 2 and {json.loads(c.arguments).get("x") for c in calls} <= {1, None}
    two = '<invoke name="time">\n</invoke>\n<invoke name="weather">\n</invoke>'
    assert len(find_calls(f"<minimax:tool_call>\n{two}\n</minimax:tool_call>", TOOLS)[1]) == 2


def test_several_calls_have_ids_of_their_own():
    other = CALL.replace("weather", "time")
    for text in (f"{CALL}\n{other}", f"<tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>", f"[{CALL}, {other}]"):  # fmt: skip
        _, calls = find_calls(text, TOOLS)
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
    tools = tuple(Tool(name=name, parameters=schema) for name, schema in TOOLS.items())
    return Request(messages=(user_message("How is the weather?"),), **{"tools": tools, **more})


def pieces_of(text):
    cuts = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return cuts.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


TEXTS = st.sampled_from([*CALLS.values(), *ANSWERS.values()]) | st.lists(
    st.sampled_from(["```", "json", "\n", " ", CALL, "<tool_call>", "</tool_call>", "a", "`", "<", "[", "[TOOL_CALLS]", "{", '"name"',
        "<function=", "weather", ">", "<parameter=city>", "</parameter>", "</function>", "<arg_key>", "function<｜tool▁sep｜>",
        "<arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"])
).map("".join)  # fmt: skip


@given(TEXTS.flatmap(pieces_of))
async def test_a_stream_shows_what_the_reply_has_and_nothing_is_lost(pieces):
    stream = Stream()
    reply = await TextCallClient(Pieces(pieces)).complete(request(), stream)
    assert stream.text == reply.text and stream.calls == reply.tool_calls
    assert reply.finish is (Finish.TOOL_CALLS if reply.tool_calls else Finish.STOP)
    said = "".join(pieces)
    assert said.startswith(reply.text) if reply.tool_calls else said == reply.text


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
async def test_a_call_that_comes_letter_by_letter_is_not_shown(text):
    stream = Stream()
    reply = await TextCallClient(Pieces(text)).complete(request(), stream)
    assert stream.text == reply.text and stream.calls == reply.tool_calls != ()


@given(pieces_of("```python\nprint(1)\n```\nand `more` <b>of</b> it"))
async def test_an_answer_that_is_no_call_is_not_kept_back(pieces):
    stream = Stream()
    await TextCallClient(Pieces([*pieces, "."])).complete(request(), stream)
    assert stream.deltas[-1].text == "."


@pytest.mark.parametrize(
    "asked", [request(tools=()), request(tool_choice="none")], ids=["no tools", "forbidden"]
)
async def test_where_no_call_is_wanted_the_text_stays(asked):
    reply = await TextCallClient(Pieces([CALL])).complete(asked, Stream())
    assert reply.text == CALL and not reply.tool_calls


HOSTILE = {
    "marks": "```" * 300_000,
    "calls and a word": f"```json\n{CALL}\n```\n" * 20_000 + "word",
    "tags": "<tool_call>" * 100_000,
    "brackets": "[" * 1_000_000,
    "blanks": " " * 1_000_000 + "{",
    "values without an end": "<function=weather><parameter=city>" * 20_000,
    "ends of values": "<function=weather><parameter=city>" + f"</parameter>{' ' * 500}" * 2_000,
    "names of GLM": "<tool_call>weather<arg_key>" * 20_000,
    "values of GLM": "<tool_call>weather<arg_key>a</arg_key><arg_value>" * 10_000
    + "</arg_value>" * 50_000,
    "arguments without an end": "<function=weather><parameter=city>" * 256
    + "</parameter>x" * 50_000
    + "</parameter><parameter=<",
    "names and blanks": f"<tool_call>weather{' ' * 1000}" * 1_000,
    "calls in tags": "<function=weather><parameter=city>a</parameter></function>" * 10_000 + "word",
    "beginnings": f"```{CALL[:-2]}" * 20_000,
    "lists": ('```[{"name": "weather", "arguments": {}}, 1]') * 20_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("size", [10**9, 5_000])
async def test_no_answer_takes_much_longer_to_read_than_words(text, size):
    async def seconds(said):
        pieces = [said[at : at + size] for at in range(0, len(said), size)]
        began = time.process_time()
        reply = await TextCallClient(Pieces(pieces)).complete(request(), Stream())
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
    reply = await TextCallClient(Pieces(pieces)).complete(request(), stream := Stream())
    assert stream.text == reply.text == "".join(pieces)
    assert time.process_time() - began < 0.7


async def test_calls_that_the_server_has_read_are_the_calls():
    own = ToolCall(id="1", name="time", arguments="{}")
    client = TextCallClient(Pieces([CALL], tool_calls=(own,)))
    stream = Stream()
    reply = await client.complete(request(), stream)
    assert reply.tool_calls == (own,) and reply.text == stream.text == CALL
