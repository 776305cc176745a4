"""Serves the recipe's models on one GPU, in OpenAI's form: many calls at once, sampled where the weights are.

    python recipes/real-benchmarks/engine.py --port 8080 qwen-1.5b=FOLDER qwen-0.5b=FOLDER smol=FOLDER

In the place of a folder a GGUF file will do: its numbers are taken, in bf16. `POST /load` with `{"name": …, "folder": …}`
adds a trained conductor later. Whoever asks the same again at temperature 0 gets the same reply. llama.cpp chooses each call's next token on the CPU, which took most of the
time with 128 calls of 152,000 possible tokens; here a step of all calls is one CUDA graph. Qwen2 and Llama alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

LANES = ((256, 1280), (64, 6144))
"""Places of a model, and the tokens that each may have, prompt and reply."""
BUCKET = 256
"""Caches are read up to the longest text, rounded up to so many tokens: one graph for each."""
READ_AT_ONCE = 12_288
"""Tokens of prompts, with what pads them, that are read before others write on."""
GATHERED, PATIENCE = 16, 12
"""Prompts that are read together if there are so many, and steps after which fewer are."""
TOP_K, TOP_P, MIN_P = 40, 0.95, 0.05
"""llama.cpp's defaults at a temperature above 0."""
REPLY_TOKENS = 640


@dataclass(eq=False)
class Call:
    """One request: the prompt's tokens, and what has been written."""

    prompt: list[int]
    most: int
    temperature: float
    top_p: float
    done: Any
    """Is called once, on the engine's thread, when nothing more is written."""
    written: list[int] = field(default_factory=list)
    finish: str = "length"
    error: str = ""


class Weights:
    """A model's matrices in bf16, those that read the same input joined."""

    def __init__(self, folder: str, device: torch.device, dtype: torch.dtype) -> None:
        place = Path(folder)
        packed = {"gguf_file": place.name} if place.suffix == ".gguf" else {}
        where = str(place.parent if packed else place)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **packed)
        config = model.config
        self.tokenizer: Any = AutoTokenizer.from_pretrained(where, **packed)
        named = [self.tokenizer.eos_token, "<|im_end|>", "<|endoftext|>"]
        ids = self.tokenizer.convert_tokens_to_ids([name for name in named if name])
        self.ends = {each for each in ids if isinstance(each, int) and each >= 0}
        self.heads, self.kv = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.device, self.dtype = device, dtype

        def put(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device, dtype).contiguous()

        self.embedding = put(model.model.embed_tokens.weight)
        self.output = put(model.lm_head.weight)
        self.norm = put(model.model.norm.weight).float()
        self.layers = []
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            biases = [one.bias for one in (a.q_proj, a.k_proj, a.v_proj)]
            self.layers.append((
                put(layer.input_layernorm.weight).float(),
                put(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])),
                None if biases[0] is None else put(torch.cat(biases)),
                put(a.o_proj.weight),
                put(layer.post_attention_layernorm.weight).float(),
                put(torch.cat([m.gate_proj.weight, m.up_proj.weight])),
                put(m.down_proj.weight),
            ))  # fmt: skip
        rotary = model.model.rotary_emb
        self.frequencies = rotary.inv_freq.float().to(device)
        self.rope_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self.limit = int(config.max_position_embeddings)

    def turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the positions, of shape (*positions, width)."""
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * self.rope_scale, angles.sin() * self.rope_scale


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn queries or keys (…, head, width) by their positions."""
    half = x.shape[-1] // 2
    x = x.float()
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cosine[..., None, :] + turned * sine[..., None, :]


class Lane:
    """Places of one model that are stepped together."""

    def __init__(self, weights: Weights, places: int, tokens: int, *, graphs: bool) -> None:
        w = self.w = weights
        self.places, self.tokens = places, tokens
        shape = (len(w.layers), places, w.kv, tokens, w.width)
        self.keys = torch.zeros(shape, device=w.device, dtype=w.dtype)
        self.values = torch.zeros(shape, device=w.device, dtype=w.dtype)
        self.calls: list[Call | None] = [None] * places
        self.waiting: deque[Call] = deque()
        self.last = torch.zeros(places, dtype=torch.long, device=w.device)
        self.at = torch.zeros(places, dtype=torch.long, device=w.device)
        self.rows = torch.arange(places, device=w.device)
        self.temperature = torch.zeros(places, device=w.device)
        self.top_p = torch.ones(places, device=w.device)
        self.lengths = [0] * places
        self.steps = 0
        self.graphs: dict[tuple[int, bool], Any] = {}
        self.use_graphs = graphs
        self.stream = torch.cuda.Stream() if graphs else None

    @torch.inference_mode()
    def admit(self) -> int:
        """Read the prompts of those who wait and for whom there is a place; return how many."""
        free = [place for place, call in enumerate(self.calls) if call is None]
        self.steps += 1
        if (
            min(len(free), len(self.waiting)) < GATHERED
            and self.steps < PATIENCE
            and len(free) < self.places
        ):
            return 0
        self.steps = 0
        taken: list[tuple[int, Call]] = []
        longest = 0
        while free and self.waiting:
            longest_then = max(longest, len(self.waiting[0].prompt))
            padded = -(-longest_then // 64) * 64
            if taken and padded * (len(taken) + 1) > READ_AT_ONCE:
                break
            longest = longest_then
            taken.append((free.pop(), self.waiting.popleft()))
        if taken:
            self._read(taken, -(-longest // 64) * 64)
        return len(taken)

    def _read(self, taken: list[tuple[int, Call]], padded: int) -> None:
        w = self.w
        places = torch.tensor([place for place, _ in taken], device=w.device)
        counts = torch.tensor([len(call.prompt) for _, call in taken], device=w.device)
        ids = torch.tensor(
            [[*c.prompt, *[0] * (padded - len(c.prompt))] for _, c in taken], device=w.device
        )
        x = functional.embedding(ids, w.embedding).float()
        cosine, sine = w.turn(torch.arange(padded, device=w.device))
        b, g = len(taken), w.heads // w.kv
        for number, (n1, qkv, bias, o, n2, gate_up, down) in enumerate(w.layers):
            h = functional.rms_norm(x, (x.shape[-1],), n1, w.eps).to(w.dtype)
            q, k, v = self._split(functional.linear(h, qkv, bias), (b, padded))
            q = rotate(q, cosine, sine).to(w.dtype).transpose(1, 2)
            k = rotate(k, cosine, sine).to(w.dtype).transpose(1, 2)
            v = v.transpose(1, 2)
            self.keys[number, places, :, :padded] = k
            self.values[number, places, :, :padded] = v
            mixed = functional.scaled_dot_product_attention(
                q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), is_causal=True
            )
            x = self._finish(x, mixed.transpose(1, 2).reshape(b, padded, -1), o, n2, gate_up, down)
        x = x[torch.arange(b, device=w.device), counts - 1]
        self.temperature[places] = torch.tensor([c.temperature for _, c in taken], device=w.device)
        self.top_p[places] = torch.tensor([c.top_p for _, c in taken], device=w.device)
        warm = any(c.temperature > 0 for _, c in taken)
        chosen = self._choose(
            self._logits(x), self.temperature[places], self.top_p[places], warm=warm
        )
        self.last[places] = chosen
        self.at[places] = counts
        for (place, call), token in zip(taken, chosen.tolist(), strict=True):
            self.calls[place] = call
            self.lengths[place] = len(call.prompt)
            self._take(place, token)

    def _split(self, joined: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
        w = self.w
        parts = joined.split([w.heads * w.width, w.kv * w.width, w.kv * w.width], -1)
        return [part.reshape(*shape, -1, w.width) for part in parts]

    def _finish(
        self, x: Tensor, mixed: Tensor, o: Tensor, n2: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        x = x + functional.linear(mixed, o)
        h = functional.rms_norm(x, (x.shape[-1],), n2, self.w.eps).to(self.w.dtype)
        gate, up = functional.linear(h, gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, down)

    def _logits(self, x: Tensor) -> Tensor:
        h = functional.rms_norm(x, (x.shape[-1],), self.w.norm, self.w.eps).to(self.w.dtype)
        return functional.linear(h, self.w.output)

    @staticmethod
    def _choose(logits: Tensor, temperature: Tensor, top_p: Tensor, *, warm: bool) -> Tensor:
        best = logits.argmax(-1)
        if not warm:
            return best
        values, order = logits.float().topk(TOP_K, -1)
        shares = torch.softmax(values, -1)
        before = shares.cumsum(-1) - shares
        out = (before >= top_p[:, None]) | (shares < MIN_P * shares[:, :1])
        cold = temperature <= 0
        scaled = (values / torch.where(cold, 1.0, temperature)[:, None]).masked_fill(
            out, float("-inf")
        )
        noise = -torch.empty_like(scaled).exponential_().log()
        drawn = order.gather(-1, (scaled + noise).argmax(-1, keepdim=True)).squeeze(-1)
        return torch.where(cold, best, drawn)

    def _step(self, span: int, *, warm: bool) -> None:
        """Write one token in every place, used or not; `span` tokens of the caches are read."""
        w = self.w
        g = w.heads // w.kv
        x = functional.embedding(self.last, w.embedding).float()
        cosine, sine = w.turn(self.at)
        unseen = torch.arange(span, device=w.device)[None] > self.at[:, None]
        for number, (n1, qkv, bias, o, n2, gate_up, down) in enumerate(w.layers):
            h = functional.rms_norm(x, (x.shape[-1],), n1, w.eps).to(w.dtype)
            q, k, v = self._split(functional.linear(h, qkv, bias), (self.places,))
            q = rotate(q, cosine, sine).to(w.dtype).view(self.places, w.kv, g, w.width)
            self.keys[number].index_put_(self._where(), rotate(k, cosine, sine).to(w.dtype))
            self.values[number].index_put_(self._where(), v)
            scores = torch.matmul(q, self.keys[number][:, :, :span].transpose(-1, -2)).float()
            scores = (scores * w.width**-0.5).masked_fill(unseen[:, None, None], float("-inf"))
            mixed = torch.matmul(
                torch.softmax(scores, -1).to(w.dtype), self.values[number][:, :, :span]
            )
            x = self._finish(x, mixed.reshape(self.places, -1), o, n2, gate_up, down)
        self.last.copy_(self._choose(self._logits(x), self.temperature, self.top_p, warm=warm))
        self.at.add_(1).clamp_(max=self.tokens - 1)

    def _where(self) -> tuple[Tensor, Tensor, Tensor]:
        heads = torch.arange(self.w.kv, device=self.w.device)
        return self.rows[:, None], heads[None], self.at[:, None]

    @torch.inference_mode()
    def launch(self) -> bool:
        """Begin a step of all calls, if there are any."""
        used = [length for call, length in zip(self.calls, self.lengths, strict=True) if call]
        if not used:
            return False
        span = min(-(-(max(used) + 1) // BUCKET) * BUCKET, self.tokens)
        warm = any(call.temperature > 0 for call in self.calls if call)
        if self.stream is None:
            self._step(span, warm=warm)
            return True
        if (span, warm) not in self.graphs:
            self._capture(span, warm=warm)
        with torch.cuda.stream(self.stream):
            self.graphs[span, warm].replay()
        return True

    def _capture(self, span: int, *, warm: bool) -> None:
        """Record the step; what it writes while that is done is put back."""
        torch.cuda.synchronize()
        kept = self.last.clone(), self.at.clone()
        with torch.cuda.stream(self.stream):
            self._step(span, warm=warm)
        torch.cuda.synchronize()
        self.last.copy_(kept[0])
        self.at.copy_(kept[1])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread may read a model's weights meanwhile
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self._step(span, warm=warm)
        torch.cuda.synchronize()
        self.graphs[span, warm] = graph

    def collect(self) -> int:
        """Wait for the step that was begun, and keep its tokens; return how many."""
        if self.stream is not None:
            self.stream.synchronize()
        written = 0
        tokens = self.last.tolist()
        for place, call in enumerate(self.calls):
            if call is not None:
                self.lengths[place] += 1
                self._take(place, tokens[place])
                written += 1
        return written

    def _take(self, place: int, token: int) -> None:
        call = self.calls[place]
        if call is None:
            return
        if token in self.w.ends:
            call.finish = "stop"
        else:
            call.written.append(token)
        if (
            call.finish == "stop"
            or len(call.written) >= call.most
            or self.lengths[place] + 1 >= self.tokens
        ):
            self.calls[place] = None
            call.done()


class Model:
    """A model's weights and lanes."""

    def __init__(
        self, folder: str, device: torch.device, *, graphs: bool, lanes: Any = LANES
    ) -> None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.weights = Weights(folder, device, dtype)
        self.lanes = [
            Lane(self.weights, places, min(tokens, self.weights.limit), graphs=graphs)
            for places, tokens in lanes
        ]

    def place(self, call: Call) -> None:
        """Put the call into the first lane that has room for it."""
        for lane in self.lanes:
            if len(call.prompt) + call.most + 1 < lane.tokens:
                lane.waiting.append(call)
                return
        if len(call.prompt) + 16 >= self.lanes[-1].tokens:
            call.error = "the prompt is longer than the context"
            call.done()
            return
        self.lanes[-1].waiting.append(call)


class Engine:
    """All models, stepped by one thread."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.models: dict[str, Model] = {}
        self.inbox: deque[Any] = deque()
        self.wake = threading.Event()
        self.tokens = self.calls = self.prompts = 0
        threading.Thread(target=self.run, daemon=True).start()

    def submit(self, work: Any) -> None:
        """Have something done on the engine's thread."""
        self.inbox.append(work)
        self.wake.set()

    def load(self, name: str, folder: str) -> None:
        """Read a model, on the caller's thread."""
        self.models[name] = Model(folder, self.device, graphs=self.device.type == "cuda")

    def run(self) -> None:
        """Step until the process ends."""
        while True:
            try:
                self._round()
            except Exception:  # noqa: BLE001 - whoever waits is told, and the others go on
                traceback.print_exc()
                for model in list(self.models.values()):
                    for lane in model.lanes:
                        for place, call in enumerate(lane.calls):
                            if call is not None:
                                lane.calls[place] = None
                                call.error = "the engine failed"
                                call.done()

    def _round(self) -> None:
        while self.inbox:
            self.inbox.popleft()()
        lanes = [lane for model in list(self.models.values()) for lane in model.lanes]
        for lane in lanes:
            if lane.waiting:
                self.prompts += lane.admit()
        begun = [lane for lane in lanes if lane.launch()]
        for lane in begun:
            self.tokens += lane.collect()
        if not begun and not self.inbox and not any(lane.waiting for lane in lanes):
            self.wake.wait()
            self.wake.clear()


class Server:
    """Chat completions over the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked: dict[Any, asyncio.Future[Call]] = {}

    async def ask(self, name: str, model: Model, body: dict[str, Any], prompt: list[int]) -> Call:
        """Return the finished call; what was asked before at temperature 0 is not asked again."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Call] = loop.create_future()
        call = Call(
            prompt,
            int(body.get("max_tokens") or body.get("max_completion_tokens") or REPLY_TOKENS),
            float(body.get("temperature", 0.8)),
            float(body.get("top_p", TOP_P)),
            lambda: loop.call_soon_threadsafe(over.set_result, call),
        )
        key = (name, tuple(prompt), call.most) if call.temperature <= 0 else over
        found = self.asked.setdefault(key, over)
        if found is over:
            self.engine.submit(lambda: model.place(call))
        if key is over:
            del self.asked[key]
        self.engine.calls += 1
        return await asyncio.shield(found)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, streamed in one piece if that is asked for."""
        body = await request.json()
        model = self.engine.models.get(body.get("model"))
        if model is None:
            return web.json_response(
                {"error": {"message": f"no model {body.get('model')}"}}, status=404
            )
        tokenizer = model.weights.tokenizer
        messages = [{"role": m["role"], "content": as_text(m["content"])} for m in body["messages"]]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        call = await self.ask(body["model"], model, body, prompt)
        if call.error:
            return web.json_response({"error": {"message": call.error}}, status=400)
        said = tokenizer.decode(call.written, skip_special_tokens=True)
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(call.written) + (call.finish == "stop"),
            "total_tokens": len(prompt) + len(call.written) + (call.finish == "stop"),
        }
        head = {
            "id": f"chatcmpl-{time.time_ns()}",
            "created": int(time.time()),
            "model": body["model"],
        }
        if not body.get("stream"):
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": said},
                "finish_reason": call.finish,
            }
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        head["object"] = "chat.completion.chunk"
        first = {"index": 0, "delta": {"role": "assistant", "content": said}, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": call.finish}
        events = [
            {**head, "choices": [first]},
            {**head, "choices": [last]},
            {**head, "choices": [], "usage": usage},
        ]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        await reply.write(text.encode())
        return reply

    async def load(self, request: web.Request) -> web.Response:
        """Add a model."""
        body = await request.json()
        await asyncio.to_thread(self.engine.load, body["name"], body["folder"])
        return web.json_response({"loaded": body["name"]})

    async def health(self, _: web.Request) -> web.Response:
        """Say what was done so far."""
        e = self.engine
        lanes = {
            name: [
                [sum(c is not None for c in lane.calls), len(lane.waiting)] for lane in model.lanes
            ]
            for name, model in e.models.items()
        }
        return web.json_response(
            {"status": "ok", "tokens": e.tokens, "calls": e.calls, "lanes": lanes}
        )

    async def list_models(self, _: web.Request) -> web.Response:
        """List the models' names."""
        return web.json_response(
            {"object": "list", "data": [{"id": n, "object": "model"} for n in self.engine.models]}
        )


def as_text(content: Any) -> str:
    """Return a message's text, whose parts may be listed."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--port", type=int, default=8080)
    said = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(
            enabled=False
        )  # a fault on Hopper GPUs: PyTorch 196678
    sys.setswitchinterval(0.0005)  # the thread that steps shares the interpreter with the server
    engine = Engine(device)
    for each in said.models:
        name, _, folder = each.partition("=")
        engine.load(name, folder)
        print(f"{name} is loaded", flush=True)
    server = Server(engine)
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/v1/models", server.list_models)
    app.router.add_post("/load", server.load)
    app.router.add_get("/health", server.health)
    web.run_app(app, host="127.0.0.1", port=said.port, print=None)


if __name__ == "__main__":
    main()
