"""The embedded model's speed, beside torch's `generate`, in one run on one core.

A Qwen2 of 0.5 M parameters (hidden 128, 3 layers, vocabulary 1024) with random weights: a plan is a
prompt of 80 tokens and 60 new ones. For Batuta the whole call counts, text to text; for torch only
`generate` on tokens. Both take turns, a process each, pinned to one core; loading counts from the
folder to the model, imports apart. Then 20 calls at once, and by how much they delay a timer on the
event loop: computing in the worker thread, as the client does, or on the loop itself in slices of
2 ms. CPU is of the whole process. `python bench/embedded.py`
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "embedded"))

PROMPT, NEW = 80, 60
ROUNDS, PLANS, AT_ONCE = 3, 40, 20


def write(folder):
    import making

    settings = making.config(
        vocab_size=1024, hidden_size=128, intermediate_size=192, num_hidden_layers=3, max_position_embeddings=512
    )  # fmt: skip
    weights = making.weights(settings)
    making.write(Path(folder), settings, weights, making.tokenizer("frames", 1024))
    # No reply ends early.
    (Path(folder) / "generation_config.json").write_text(json.dumps({"eos_token_id": 100_000}))
    return sum(values.size for values in weights.values())


def quantiles(seconds):
    ordered = sorted(seconds)
    return {
        "p50": statistics.median(ordered) * 1000,
        "p95": ordered[int(len(ordered) * 0.95)] * 1000,
    }


def request(model):
    """A prompt of `PROMPT` tokens: words, filled up with digits."""
    from batuta.core import Request, Sampling, user_message
    from batuta.embedded.client import format_chat_prompt

    text = "How many positive integers below 1000 are divisible by neither 6 nor 10?"
    while True:
        asked = Request(messages=(user_message(text),), sampling=Sampling(max_tokens=NEW))
        missing = PROMPT - len(model._encode_prompt(format_chat_prompt(asked)))
        if not missing:
            return asked
        text += "7" * missing


def batuta(folder):
    import batuta.embedded

    def load():
        return batuta.embedded.EmbeddedClient.open(Path(folder))

    model = load()
    asked = request(model)

    async def plans():
        took = []
        for _ in range(PLANS + 5):
            start, cpu = time.perf_counter(), time.process_time()
            reply = await model.complete(asked)
            took.append((time.perf_counter() - start, time.process_time() - cpu))
            assert (reply.usage.input, reply.usage.output) == (PROMPT, NEW)
        return took[5:]

    return {"load": timed(load), "plans": asyncio.run(plans())}


def torch(folder):
    import torch
    from transformers import Qwen2ForCausalLM

    torch.set_num_threads(1)

    def load():
        return Qwen2ForCausalLM.from_pretrained(folder).eval()

    network = load()
    tokens = torch.arange(5, 5 + PROMPT)[None]
    took = []
    for _ in range(PLANS + 5):
        start, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            out = network.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=NEW, pad_token_id=0
            )  # fmt: skip
        took.append((time.perf_counter() - start, time.process_time() - cpu))
        assert out.shape[1] == PROMPT + NEW
    return {"load": timed(load), "plans": took[5:]}


def timed(load):
    took = []
    for _ in range(5):
        start = time.perf_counter()
        load()
        took.append(time.perf_counter() - start)
    return took


def thread(folder):
    """20 calls of the client at once."""
    return asyncio.run(at_once(folder, lambda model, asked: model.complete(asked)))


def loop(folder):
    """The same computing on the event loop itself, in turns."""
    turn = asyncio.Lock()

    async def call(model, asked):
        generation = model._start_generation(asked)
        while generation.finish is None:
            async with turn:
                generation.advance(0.002)
                await asyncio.sleep(0)

    return asyncio.run(at_once(folder, call))


async def at_once(folder, call):
    from batuta.embedded import EmbeddedClient

    model = EmbeddedClient.open(Path(folder))
    asked = request(model)
    await call(model, asked)
    delays, done = [], []

    async def timer():
        while not done:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - start - 0.001)

    ticking = asyncio.ensure_future(timer())
    start = time.perf_counter()
    for _ in range(3):
        await asyncio.gather(*(call(model, asked) for _ in range(AT_ONCE)))
    wall = (time.perf_counter() - start) / 3
    done.append(True)
    await ticking
    return {"wall": wall, "delays": delays}


SYSTEMS = {"batuta": batuta, "torch": torch, "thread": thread, "loop": loop}


def measured(system, folder):
    done = subprocess.run(
        [sys.executable, __file__, system, folder], capture_output=True, text=True
    )
    if done.returncode:
        print(f"{system}: not measured: {done.stderr.strip().splitlines()[-1]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def run():
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        print(f"{write(folder):,} parameters, prompt {PROMPT}, new {NEW}")
        rounds = [{s: measured(s, folder) for s in ("batuta", "torch")} for _ in range(ROUNDS)]
        for system in ("batuta", "torch"):
            rows = [row[system] for row in rounds if row[system]]
            if rows:
                plans = quantiles([wall for row in rows for wall, _ in row["plans"]])
                cpu = quantiles([cpu for row in rows for _, cpu in row["plans"]])["p50"]
                load = quantiles([wall for row in rows for wall in row["load"]])["p50"]
                results[system] = {**plans, "cpu": cpu, "load": load}
                print(
                    f"{system:<8} plan p50 {plans['p50']:6.1f} ms  p95 {plans['p95']:6.1f} ms  CPU p50 {cpu:6.1f} ms  load p50 {load:5.1f} ms"
                )
        if "torch" in results:
            ratios = {
                name: results["torch"][name] / results["batuta"][name] for name in ("p50", "cpu")
            }
            print(f"torch / batuta: p50 {ratios['p50']:.1f}, CPU {ratios['cpu']:.1f}")
        for system in ("thread", "loop"):
            row = measured(system, folder)
            delay = quantiles(row["delays"])
            results[system] = {"wall": row["wall"] * 1000, **delay}
            print(
                f"{system:<8} {AT_ONCE} at once in {row['wall'] * 1000:5.0f} ms; timer late by p50 {delay['p50']:.2f} ms  p95 {delay['p95']:.2f} ms"
            )
    return results


if __name__ == "__main__":
    if len(sys.argv) > 1:
        if sys.argv[1] in {"batuta", "torch"}:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(SYSTEMS[sys.argv[1]](sys.argv[2])))
    else:
        run()
