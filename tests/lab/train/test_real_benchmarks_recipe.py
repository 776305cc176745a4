"""The recipe over real models: its settings are read, one journal serves all of it, its script says what is missing."""

import json
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from transformers import AutoModelForCausalLM

from batuta.lab.commands.train_settings import load_settings
from lab.train.stage import LIBRARIES

pytestmark = LIBRARIES
ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "real-benchmarks"


QUESTIONS = ("Ask one of them.", "Ask two.", "Who? " * 40, "Say nothing.", "Count.", "Why?", "Hm")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    ),
]


def script(*args, **environ):
    return subprocess.run(
        ["bash", str(RECIPE / "conductor.sh"), *args],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, **environ},
    )


def test_the_settings_are_read_and_share_the_journal_of_the_evaluations():
    settings = load_settings(RECIPE / "conductor.toml", None, 2, Path("runs/elsewhere"))
    assert settings.seed == 2 and str(settings.output) == "runs/elsewhere"
    out = re.search(r"^out=(\S+)$", (RECIPE / "run.sh").read_text(), re.MULTILINE)[1]
    assert settings.pool.journal == f"{out}/calls.db"
    text = (RECIPE / "run.sh").read_text()
    assert '"${JOURNAL:=$out/calls.db}"' in text and text.count('--journal "$JOURNAL"') == 2
    assert (ROOT / settings.pool.source).is_file()


def test_without_a_tuning_the_script_says_what_to_run():
    if (ROOT / "runs" / "real-benchmarks" / "tuned").is_dir():
        pytest.skip("there is a tuning here")
    done = script()
    assert (
        done.returncode == 1 and "there is no tuning in runs/real-benchmarks/tuned" in done.stderr
    )


@pytest.fixture(scope="module")
def engine():
    return runpy.run_path(str(RECIPE / "engine.py"))


def chat(model, question):
    tokenizer = model.weights.tokenizer
    told = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_writes_what_transformers_writes(random_policy, engine, device):
    """More calls than places, of two lengths, so that places are used again and prompts wait."""
    model = engine["Model"](
        str(random_policy),
        torch.device(device),
        graphs=device == "cuda",
        lanes=((3, 128), (2, 500)),
    )
    stepping, over = engine["Engine"](torch.device(device)), threading.Semaphore(0)
    stepping.models["policy"] = model
    calls = [
        engine["Call"](chat(model, question), 24, 0.0, 1.0, over.release)
        for question in QUESTIONS * 2
    ]
    for call in calls:
        stepping.submit(lambda call=call: model.place(call))
    assert all(over.acquire(timeout=60) for _ in calls)
    reference = AutoModelForCausalLM.from_pretrained(random_policy, dtype=torch.float32)
    reference.generation_config.eos_token_id = sorted(model.weights.ends)
    same = 24 if device == "cpu" else 8
    for call in calls:
        prompt = torch.tensor([call.prompt])
        wanted = reference.generate(  # pyright: ignore[reportAttributeAccessIssue]
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False
        )[0, prompt.shape[1] :].tolist()
        if wanted[-1] in model.weights.ends:
            assert call.finish == "stop"
            wanted.pop()
        assert call.written[:same] == wanted[:same]


@pytest.mark.anyio
async def test_the_engine_answers_in_openais_form(random_policy, engine):
    stepping = engine["Engine"](torch.device("cpu"))
    server = engine["Server"](stepping)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/load", server.load)
    asked = {"model": "policy", "messages": [{"role": "user", "content": "Ask."}], "max_tokens": 9}
    async with TestClient(TestServer(app)) as http:
        assert (await http.post("/v1/chat/completions", json=asked)).status == 404
        loaded = await http.post("/load", json={"name": "policy", "folder": str(random_policy)})
        assert loaded.status == 200
        replies = [
            await (await http.post("/v1/chat/completions", json={**asked, "temperature": 0})).json()
            for _ in range(2)
        ]
        assert replies[0]["choices"] == replies[1]["choices"]
        assert replies[0]["usage"]["completion_tokens"] <= 9
        streamed = await http.post(
            "/v1/chat/completions", json={**asked, "temperature": 0, "stream": True}
        )
        events = (await streamed.text()).split("\n\n")
        assert events[3] == "data: [DONE]"
        first, last, usage = (json.loads(event.removeprefix("data: ")) for event in events[:3])
        whole = replies[0]["choices"][0]
        assert first["choices"][0]["delta"]["content"] == whole["message"]["content"]
        assert last["choices"][0]["finish_reason"] == whole["finish_reason"]
        assert usage["usage"] == replies[0]["usage"]
        long = {**asked, "messages": [{"role": "user", "content": "word " * 9000}]}
        assert (await http.post("/v1/chat/completions", json=long)).status == 400
