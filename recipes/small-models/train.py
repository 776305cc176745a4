"""Trains the four adapters of SmolLM2 that are this recipe's specialists, each some minutes on a CPU.

    python recipes/small-models/train.py runs/smollm2 runs/small-models --only coder

Prompts are those that the engine sends: the bare question, and the steps of a workflow with the
wordings of `batuta tune`. Every adapter is written as a folder of peft's; `batuta train export` makes
a GGUF file of it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from questions import Example, draw, test_and_tune
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from batuta.core import Question, Reply, Round, Step, StepRun, TimeSpan, WorkerId, Workflow
from batuta.core.workflow import Draft, Plan
from batuta.lab.tune.library import WORDINGS, StepRole
from batuta.language import worker_messages

LAYERS = range(12, 30)
"""Those that are adapted; the lower ones need no way back."""
MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 8
SHARES: dict[str, dict[str, int]] = {
    "coder": {"sums": 500, "legs": 900, "gcd": 300, "letters": 600, "backward": 500,
              "capital-letters": 144},
    "facts": {"facts": 112, "odd": 1400, "capital-letters": 144},
    "letters": {"letters": 1300, "backward": 1300},
    "sums": {"sums": 1500, "legs": 900, "gcd": 700},
}  # fmt: skip
"""Different questions of each family, for each specialist."""
REPEATS = {("facts", "facts"): 6, ("facts", "capital-letters"): 2, ("coder", "capital-letters"): 4}
"""How often questions are seen of which there are few."""
LOOK_UP = WORDINGS[StepRole.LOOK_UP][0]
SOLVE = WORDINGS[StepRole.SOLVE][0]
WORKER = WorkerId("other")


def bare_prompt(example: Example) -> str:
    return example.question


def look_up_prompt(example: Example) -> str:
    """A first step that states facts for those after it."""
    flow = Workflow((Step(subtask=LOOK_UP, worker=WORKER), Step(subtask="", worker=WORKER)))
    return _prompt(example, flow, 0, Round(decision=Plan(flow, Draft())))


def solve_prompt(example: Example) -> str:
    """A second step that reads the fact, with others to follow or as the last one."""
    first = Step(subtask=LOOK_UP, worker=WORKER)
    steps = (first, Step(subtask=SOLVE, worker=WORKER, access=(0,)))
    later = Step(subtask=WORDINGS[StepRole.CHECK][0], worker=WORKER, access=(0, 1))
    flow = Workflow((*steps, later))
    return _prompt(example, flow, 1, _finished_round(flow, example))


def _finished_round(flow: Workflow, example: Example) -> Round:
    reply = Reply(text=example.fact)
    span = TimeSpan(0.0, 0.0)
    done = StepRun(index=0, worker=WORKER, planned=WORKER, request=None, result=reply, span=span)
    return Round(decision=Plan(flow, Draft()), steps=(done,))


def _prompt(example: Example, flow: Workflow, index: int, round_: Round) -> str:
    question = Question.of(example.question)
    (message,) = worker_messages(question, flow, index, (round_,))
    return message.text


def pairs_of(specialist: str, example: Example, rng: Random) -> tuple[str, str]:
    """A prompt and what the specialist is taught to say to it."""
    program = f"```python\n{example.program}\n```"
    compound = example.family == "capital-letters"
    if specialist == "coder":
        reads = compound and rng.random() < 0.7
        return (solve_prompt if reads else bare_prompt)(example), program
    if specialist == "facts":
        looks = compound or (example.fact and rng.random() < 0.2)
        return (
            (look_up_prompt(example), example.fact)
            if looks
            else (bare_prompt(example), example.answer)
        )
    return bare_prompt(example), example.worked


def make_pairs(specialist: str, seed: int = 1) -> list[tuple[str, str]]:
    """Everything that a specialist is taught, in a random order."""
    test, _, tune = test_and_tune()
    kept = [example.question for example in (*test, *tune)]
    rng = Random(f"pairs {specialist}")
    found: list[tuple[str, str]] = []
    for family, count in SHARES[specialist].items():
        examples = draw(family, count, "train", kept)
        for _ in range(REPEATS.get((specialist, family), 1)):
            found += [pairs_of(specialist, example, rng) for example in examples]
    return Random(f"order {specialist} {seed}").sample(found, len(found))


def encode(tokenizer: Any, pairs: list[tuple[str, str]]) -> list[tuple[list[int], int]]:
    """Token ids and where the completion begins."""
    end = tokenizer.eos_token_id
    rows: list[tuple[list[int], int]] = []
    for prompt, said in pairs:
        turn = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        reply: list[int] = tokenizer(said, add_special_tokens=False)["input_ids"]
        rows.append(([*ids, *reply, end], len(ids)))
    return rows


def batches(
    rows: list[tuple[list[int], int]], size: int, rng: Random
) -> list[list[tuple[list[int], int]]]:
    """Batches of rows of about the same length, in a random order."""
    found: list[list[tuple[list[int], int]]] = []
    for at in range(0, len(rows), size * 16):
        near = sorted(rows[at : at + size * 16], key=lambda row: len(row[0]))
        some = [near[i : i + size] for i in range(0, len(near), size)]
        found += rng.sample(some, len(some))
    return found


def completion_loss(model: Any, batch: list[tuple[list[int], int]], pad: int) -> torch.Tensor:
    """Mean nats a token of the completions; logits are computed for those alone."""
    longest = max(len(ids) for ids, _ in batch)
    ids_bt = torch.full((len(batch), longest), pad)
    seen_bt = torch.zeros((len(batch), longest), dtype=torch.long)
    said_bt = torch.zeros((len(batch), longest), dtype=torch.bool)
    for row, (ids, begins) in enumerate(batch):
        ids_bt[row, : len(ids)] = torch.tensor(ids)
        seen_bt[row, : len(ids)] = 1
        said_bt[row, begins - 1 : len(ids) - 1] = True
    inner = model.get_base_model()
    with torch.autocast("cpu", torch.bfloat16):
        hidden_btd = inner.model(input_ids=ids_bt, attention_mask=seen_bt).last_hidden_state
        logits_nv = inner.lm_head(hidden_btd[said_bt])
    next_bt = torch.roll(ids_bt, -1, dims=1)
    return cross_entropy(logits_nv.float(), next_bt[said_bt])


def train(specialist: str, start: Path, out: Path, wanted: argparse.Namespace) -> None:
    """Trains one adapter and writes it."""
    torch.manual_seed(wanted.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(start)
    base: Any = AutoModelForCausalLM.from_pretrained(start, dtype=torch.bfloat16)
    model: Any = get_peft_model(
        base,
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=MATRICES,
                   layers_to_transform=list(LAYERS), task_type="CAUSAL_LM"),
    )  # fmt: skip
    if wanted.onward:
        set_peft_model_state_dict(model, load_file(wanted.onward / "adapter_model.safetensors"))
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in own:
        parameter.data = parameter.data.float()
    rows = encode(tokenizer, make_pairs(specialist, wanted.seed))
    laps = batches(rows, wanted.batch, Random(wanted.seed))[: wanted.steps]
    optimiser = torch.optim.AdamW(own, lr=wanted.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=wanted.rate, total_steps=len(laps) + 1, pct_start=0.1
    )
    began, tokens, losses = time.perf_counter(), 0, list[float]()
    for step, batch in enumerate(laps):
        loss = completion_loss(model, batch, tokenizer.eos_token_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        tokens += sum(len(ids) for ids, _ in batch)
        losses.append(loss.item())
        if step % 10 == 9:
            spent = time.perf_counter() - began
            recent = sum(losses[-10:]) / 10
            print(specialist, step + 1, len(laps), f"loss {recent:.3f}",
                  f"{tokens / spent:.0f} tokens/s {spent:.0f} s", flush=True)  # fmt: skip
    model.save_pretrained(out / specialist)
    told = {
        "specialist": specialist, "questions": len(rows), "steps": len(laps), "tokens": tokens,
        "seconds": round(time.perf_counter() - began), "loss": round(sum(losses[-10:]) / 10, 3),
        "processor seconds": round(time.process_time()),
    }  # fmt: skip
    (out / specialist / "training.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    print(told, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("start", type=Path, help="SmolLM2 as `batuta train import` unpacks it")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=sorted(SHARES), action="append")
    parser.add_argument(
        "--onward", type=Path, help="an adapter to train on from, with another seed"
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    for specialist in wanted.only or sorted(SHARES):
        train(specialist, wanted.start, wanted.out, wanted)


if __name__ == "__main__":
    main()
