"""The client: prompts, replies, streams, turns."""

import json
import time
from dataclasses import replace

import anyio
import numpy as np
import pytest

from batuta.core import (
    Delta,
    Finish,
    Image,
    Message,
    Request,
    ResponseFormat,
    Role,
    Sampling,
    Text,
    Tool,
    Usage,
    assistant_message,
    system_message,
    user_message,
)
from batuta.embedded import EmbeddedClient
from batuta.embedded.client import Generation, format_chat_prompt, softmax
from batuta.errors import BadRequestError, ClientError, ContextLengthError
from batuta.usage import ZERO_COST
from embedded import making

pytestmark = pytest.mark.anyio


def asked(text="Who conducts?", prefill="", **sampling):
    return Request(messages=(user_message(text),), sampling=Sampling(**sampling), prefill=prefill)


def hot(text="Who conducts?", **sampling):
    """A request whose replies hardly ever repeat."""
    return asked(text, **{"temperature": 1.0, "max_tokens": 40, **sampling})


class Remembering:
    """A listener that keeps what it hears."""

    def __init__(self, streaming=True):
        self.streaming = streaming
        self.deltas = []

    async def on_delta(self, delta):
        self.deltas.append(delta)

    async def on_failure(self, failure):
        raise AssertionError(failure)


async def test_a_reply_is_counted_and_free(model, folder):
    reply = await model.complete(hot(seed=1))
    assert reply.text
    assert reply.usage == Usage(calls=1, input=reply.usage.input, output=40)
    assert reply.cost == ZERO_COST
    assert reply.finish is Finish.LENGTH
    assert reply.model == folder.name == "tiny"
    library = making.tokenizer()
    prompt = "<|user|>Who conducts?<|assistant|>"
    assert reply.usage.input == len(library.encode(prompt).ids)


async def test_a_reply_ends_with_the_end_token(folder, tmp_path):
    """Every likeliest token declared to be an end ends the reply at once."""
    first = await EmbeddedClient.open(folder).complete(asked(max_tokens=1))
    ended = copied(folder, tmp_path, "generation_config.json", eos_token_id=list(range(640)))
    reply = await EmbeddedClient.open(ended).complete(asked(max_tokens=30))
    assert reply.finish is Finish.STOP
    assert reply.usage.output == 1
    assert reply.text == first.text


def copied(folder, target, name, **changes):
    """The folder again, with some settings of one JSON file changed."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    data = json.loads((target / name).read_text()) | changes
    (target / name).write_text(json.dumps(data))
    return target


async def test_the_deltas_joined_are_the_reply(model):
    for seed in range(12):
        listener = Remembering()
        stop = ("e", "\n") if seed % 2 else ()
        request = hot(f"Question {seed}", seed=seed, stop=stop, max_tokens=120)
        reply = await model.complete(replace(request, prefill="Let me think.\n"), listener)
        assert "".join(delta.text for delta in listener.deltas) == reply.text
        assert all(delta == Delta(text=delta.text) and delta.text for delta in listener.deltas)
        assert stop or len(listener.deltas) > 2, "it comes in fragments"


async def test_a_silent_listener_hears_nothing(model):
    listener = Remembering(streaming=False)
    await model.complete(hot(), listener)
    assert not listener.deltas


async def test_the_prefill_begins_the_reply_and_is_part_of_the_prompt(model):
    plain = await model.complete(hot(seed=4))
    filled = await model.complete(replace(hot(seed=4), prefill="Sure:"))
    assert filled.text.startswith("Sure:")
    assert filled.usage.input > plain.usage.input
    assert filled.usage.output == 40
    assert filled.text.removeprefix("Sure:") != plain.text


def test_the_prompt_is_the_template_s():
    jinja2 = pytest.importorskip("jinja2")
    messages = (
        system_message("Be brief."),
        user_message("A\nB"),
        assistant_message(" c "),
        user_message("<|user|>"),
    )
    request = Request(messages=messages, prefill="So ")
    said = [{"role": m.role.value, "content": m.text} for m in messages]
    template = jinja2.Environment(autoescape=False).from_string(making.CHAT_TEMPLATE)
    assert (
        format_chat_prompt(request)
        == template.render(messages=said, add_generation_prompt=True) + "So "
    )
    developer = Request(
        messages=(Message(role=Role.DEVELOPER, parts=(Text("x"),)), user_message("y"))
    )
    assert format_chat_prompt(developer) == "<|system|>x<|user|>y<|assistant|>"


@pytest.mark.parametrize(
    "request_",
    [
        Request(messages=(Message(role=Role.TOOL, parts=(Text("x"),)),)),
        Request(
            messages=(Message(role=Role.USER, parts=(Text("x"), Image(url="https://x/y.png"))),)
        ),
        Request(messages=(user_message("x"),), tools=(Tool(name="f"),)),
        Request(messages=(user_message("x"),), response_format=ResponseFormat(kind="json_object")),
        asked(max_tokens=0),
    ],
)
async def test_what_it_cannot_do_is_refused(model, request_):
    with pytest.raises(BadRequestError):
        await model.complete(request_)


async def test_the_same_seed_repeats_a_reply_and_another_does_not(model):
    replies = [(await model.complete(hot(seed=seed))).text for seed in (1, 1, 2, 3, 4, None, None)]
    assert replies[0] == replies[1]
    assert len(set(replies[1:])) == len(replies) - 1
    nucleus = [(await model.complete(hot(seed=1, top_p=p))).text for p in (0.3, 0.3, 1.0)]
    assert nucleus[0] == nucleus[1] != nucleus[2] == replies[0]


async def test_cold_sampling_is_greedy_whatever_the_seed(model):
    greedy = await model.complete(asked(max_tokens=30))
    for temperature, seed in ((0.0, 1), (1e-4, 2), (None, 3)):
        reply = await model.complete(asked(max_tokens=30, temperature=temperature, seed=seed))
        assert reply == greedy
    assert (await model.complete(asked())).usage.output <= 256


async def test_the_first_token_follows_the_softmax(model):
    """Chi-square over 1,500 replies of one token, each of another seed."""
    counts = {}
    for seed in range(1500):
        generation = model._start_generation(hot(temperature=2.0, max_tokens=1, seed=seed))
        generation.advance(1.0)
        (token,) = generation._unread
        counts[token] = counts.get(token, 0) + 1
    prompt = model._encode_prompt(format_chat_prompt(hot()))
    generation = Generation(
        model._model, model._tokenizer, ends=frozenset(), prompt=prompt, sampling=Sampling()
    )
    weights = softmax(model._model.logits(prompt, generation._cache), 2.0)
    likely = [token for token in np.argsort(-weights) if weights[token] * 1500 >= 5]
    parts = [(counts.get(t, 0) - 1500 * weights[t]) ** 2 / (1500 * weights[t]) for t in likely]
    assert len(likely) > 10
    assert sum(parts) < len(likely) + 3.3 * (2 * len(likely)) ** 0.5


async def test_stop_strings_end_the_reply_before_them(model):
    whole = await model.complete(hot(seed=9, max_tokens=60))
    stop = whole.text[20:23]
    cut = await model.complete(hot(seed=9, max_tokens=60, stop=(stop, "\0never")))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish is Finish.STOP
    assert 0 < cut.usage.output < whole.usage.output


async def test_twenty_calls_at_once_are_the_twenty_calls_one_by_one(model):
    requests = [hot(f"Question {n}?", seed=n, max_tokens=30 + n) for n in range(20)]
    alone = [await model.complete(request) for request in requests]
    together = [None] * 20

    async def call(n):
        listener = Remembering(streaming=n % 2 == 0)
        together[n] = await model.complete(requests[n], listener)

    async with anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(call, n)
    assert together == alone
    assert len({reply.text for reply in alone}) == 20


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that never ends a reply and has positions for seconds of computing."""
    settings = making.config(max_position_embeddings=4096, num_hidden_layers=4, hidden_size=192)
    folder = making.write(tmp_path_factory.mktemp("endless"), settings, making.weights(settings))
    (folder / "generation_config.json").write_text('{"eos_token_id": 100000}')
    return EmbeddedClient.open(folder)


@pytest.mark.parametrize("streaming", [True, False])
async def test_cancelling_ends_a_call_soon_and_frees_the_model(endless, streaming):
    async def call():
        await endless.complete(hot(max_tokens=4000), Remembering(streaming))
        raise AssertionError("a reply of 4,000 tokens came before it was cancelled")

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call)
        await anyio.sleep(0.05)
        spent = time.process_time()
        group.cancel_scope.cancel()
    reply = await endless.complete(hot(max_tokens=2))
    assert time.process_time() - spent < 1.5
    assert reply.usage.output == 2


async def test_the_event_loop_goes_on_meanwhile(endless):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await endless.complete(hot(max_tokens=300))
        group.cancel_scope.cancel()
    assert ticks > 5


async def test_a_prompt_may_fill_all_positions_but_one(model):
    positions = model._model.shape.positions
    for wanted in (positions - 2, positions - 1):
        prompt = filled(model, wanted)
        reply = await model.complete(asked(prompt, max_tokens=50, seed=1))
        assert reply.usage == Usage(calls=1, input=wanted, output=positions - wanted)
        assert reply.finish is Finish.LENGTH
    for too_long in (filled(model, positions), "7 " * 100_000):
        with pytest.raises(ContextLengthError, match="256 positions of tiny") as caught:
            await model.complete(asked(too_long))
        assert isinstance(caught.value, ClientError)


def filled(model, tokens):
    """A text whose prompt has so many tokens: a digit is one."""
    around = len(model._encode_prompt(format_chat_prompt(asked(""))))
    return "7" * (tokens - around)


async def test_a_huge_prompt_is_refused_without_being_read(model):
    start = time.process_time()
    with pytest.raises(ContextLengthError):
        await model.complete(asked("wörd " * 2_000_000))
    assert time.process_time() - start < 4
