"""Requests of very many small parts: reading them holds nobody else up."""

import json
import time

import pytest

from batuta.gateway.chat.request import parse_chat
from batuta.gateway.http.body import Fields
from batuta.gateway.messages.request import parse_message
from batuta.gateway.responses.request import ResponseHistory, parse_response
from gateway.loop_steps import LoopbackApp, hold, watched_steps

pytestmark = pytest.mark.anyio

PARTS = 20_000
TURNS = [{"role": ("user", "assistant")[at % 2], "content": "x"} for at in range(PARTS + 1)]
TEXTS = [{"role": "user", "content": [{"type": "text", "text": "x"}] * PARTS}]
INPUTS = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * PARTS}]
DIALECTS = {
    "/v1/chat/completions": (parse_chat, "messages", TURNS, TEXTS),
    "/v1/messages": (parse_message, "messages", TURNS, TEXTS),
    "/v1/responses": (lambda body: parse_response(body, ResponseHistory()), "input", TURNS, INPUTS),
}


WAYS = [
    pytest.param(path, kind, model, marks=[pytest.mark.long] if sum(places) % 2 else [])
    for *places, path, kind, model in (
        (at, kinds, models, path, kind, model)
        for at, path in enumerate(DIALECTS)
        for kinds, kind in enumerate(("turns", "texts"))
        for models, model in enumerate(("worker/ada", "batuta-ultra"))
    )
]
"""Every two of them meet in the ordinary tests; the other half of all ways is `long`."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "kind", "model"), WAYS)
async def test_no_step_of_the_loop_takes_as_long_as_reading_them(path, kind, model):
    parse, field, turns, texts = DIALECTS[path]
    body = {"model": model, "max_tokens": 9, field: turns if kind == "turns" else texts}
    if path == "/v1/responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    began = time.thread_time()
    parse(Fields(body))
    reading = time.thread_time() - began
    with watched_steps() as steps:
        longest, status = await hold(LoopbackApp(), steps, path, json.dumps(body).encode())
    assert status == 200
    assert longest < reading, steps.where
