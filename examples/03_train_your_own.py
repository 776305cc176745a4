"""A conductor learns on one's own questions and workers, by the commands of docs/training.md.

The workers are simulated: three small programs behind a loopback server that speaks chat
completions. One adds, one spells, one can do neither; what they cannot do they repeat from
whomever they may read. So a workflow of one step is right for half of the questions at best.

Takes two to three minutes on one core; needs batuta-llm[train].
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from threading import Thread

from batuta.cli import app

SUM = re.compile(r"Add (\d+) and (\d+)\.")
WORD = re.compile(r"Spell (\w+) backwards\.")
SAID = re.compile(r"Answer: (\w+)")
TESTED = 100
"""Questions kept back."""

TRAINING = """
name = "mine"
output = "runs/mine"

[policy.network]
vocabulary = 512
hidden = 64
layers = 2
inner = 128

[prompt]
compact = true

[pool]
source = "pool.toml"

[[curriculum]]
tasks = { "questions.jsonl" = 1.0 }

[warmup]
steps = 200
batch = 16
learning_rate = 6e-3
hints = 0.2
revisions = 0.0
prompt_weight = 0.05

[rejection]
rounds = 2
questions = 200
group = 8
steps = 100

[optimiser]
sampler = "own"
steps = 60
questions = 16
group = 8
micro_batch = 128
learning_rate = 1.5e-3
schedule = "constant"
warmup = 0.0
loss = "dapo"
max_grad_norm = 0.5
entropy = 0.003
completion = 80
threads = 1
"""

COMMANDS = """\
train warmup --config training.toml
train rejection --config training.toml
train conductor --config training.toml
eval --tasks test.jsonl --pool pool.toml --systems best-single,random,ultra --out runs/mine/eval \
--conductor runs/mine/policy"""
"""Of `batuta`; the system `ultra` is the conductor."""

WORKER = """
[[workers]]
id = "{name}"
provider = "compatible"
base_url = "{url}"
model = "{name}"
"""


def answer(model: str, prompt: str) -> str:
    """What the worker says; prompt is the question, the subtask and what it may read."""
    if model == "adder" and (found := SUM.search(prompt)):
        return f"I add.\nAnswer: {int(found[1]) + int(found[2])}"
    if model == "speller" and (found := WORD.search(prompt)):
        return f"I spell.\nAnswer: {found[1][::-1]}"
    heard = SAID.findall(prompt)
    return f"I repeat.\nAnswer: {heard[-1]}" if heard else "I do not know."


class Workers(BaseHTTPRequestHandler):
    """Chat completions, as much of them as is needed: whole or streamed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer one request."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][-1]["content"]
        text = answer(body["model"], prompt)
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
        said = {"role": "assistant", "content": text}
        choice = {"index": 0, "delta" if body.get("stream") else "message": said}
        reply = json.dumps({"choices": [{**choice, "finish_reason": "stop"}], "usage": usage})
        if body.get("stream"):
            self.send("text/event-stream", f"data: {reply}\n\ndata: [DONE]\n\n".encode())
        else:
            self.send("application/json", reply.encode())

    def send(self, kind: str, data: bytes) -> None:
        """Send data of that kind."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@contextmanager
def serving() -> Iterator[str]:
    """The workers' address, for as long as they are served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Workers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def questions(count: int) -> Iterator[dict[str, str | int]]:
    """Sums and words by turns."""
    rng = Random(1)
    for _ in range(count // 2):
        one, two = rng.randint(10, 99), rng.randint(10, 99)
        yield {"question": f"Add {one} and {two}.", "answer": one + two}
        word = "".join(rng.choice("bdfglmnrst") + rng.choice("aeiou") for _ in range(3))
        yield {"question": f"Spell {word} backwards.", "answer": word[::-1]}


def write_files(url: str) -> None:
    """What a training needs: questions, others to test on, pool, settings."""
    lines = list({json.dumps(each): None for each in questions(600)})
    Path("questions.jsonl").write_text("\n".join(lines[TESTED:]), encoding="utf-8")
    Path("test.jsonl").write_text("\n".join(lines[:TESTED]), encoding="utf-8")
    names = ("adder", "speller", "parrot")
    pool = "".join(WORKER.format(name=name, url=url) for name in names)
    Path("pool.toml").write_text(pool, encoding="utf-8")
    Path("training.toml").write_text(TRAINING, encoding="utf-8")


def main() -> None:
    with serving() as url:
        write_files(url)
        for command in COMMANDS.splitlines():
            app(command.split(), standalone_mode=False)
    metrics = Path("runs/mine/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [json.loads(line)["reward"] for line in metrics]
    print(f"mean reward of the first five steps: {fmean(rewards[:5]):.2f}")
    print(f"mean reward of the last five steps: {fmean(rewards[-5:]):.2f}")


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if sys.argv[1:] else scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with chdir(folder):
            main()
