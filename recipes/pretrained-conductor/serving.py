"""Seconds that llama.cpp takes for a plan, and whether its drafts are workflows.

    .venv/bin/python recipes/pretrained-conductor/serving.py mine.gguf --plans 20

The server runs in this process on one thread, so that its processor time can be read; prompts are those
of `measure.py`, greedy, one after another, none of them asked before.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from pathlib import Path
from typing import Any

import xllamacpp
from measure import make_questions
from search import COMPACT

from batuta.errors import WorkflowError
from batuta.language import parse_workflow


def open_server(model: Path) -> xllamacpp.Server:
    """One slot and one thread, on a free port."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel = 1024, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers, params.warmup, params.verbosity = 0, True, 0
    return xllamacpp.Server(params)


def ask(address: str, prompt: str, most: int) -> dict[str, Any]:
    """The server's whole answer."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": most,
    }
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return json.load(connection.getresponse())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--most", type=int, default=128)
    wanted = parser.parse_args()
    server = open_server(wanted.model)
    wall: list[float] = []
    spent: list[float] = []
    valid, tokens = 0, 0
    for episode in make_questions("trained", wanted.plans)[: wanted.plans]:
        prompt = episode.request(COMPACT).messages[0].text
        began, used = time.perf_counter(), time.process_time()
        reply = ask(server.listening_address, prompt, wanted.most)
        wall.append(time.perf_counter() - began)
        spent.append(time.process_time() - used)
        text = reply["choices"][0]["message"]["content"]
        tokens += reply["usage"]["completion_tokens"]
        try:
            parse_workflow(text, episode.pool)
            valid += 1
        except WorkflowError:
            pass
    print(
        json.dumps(
            {
                "plans": len(wall),
                "valid": valid,
                "tokens a draft": round(tokens / len(wall), 1),
                "wall seconds, median and longest": [
                    round(statistics.median(wall), 2),
                    round(max(wall), 2),
                ],
                "CPU seconds, median and longest": [
                    round(statistics.median(spent), 2),
                    round(max(spent), 2),
                ],
                "last draft": text,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
