"""On a GPU every stage computes there, and what it computes is what the processor computes."""

import json
import math

import pytest
import torch

from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.distil_stage import run_distillation
from batuta.lab.train.fitting import TrainingExample, add_gradients
from batuta.lab.train.model import load_policy
from batuta.lab.train.rejection_sampling import run_rejection_sampling
from batuta.lab.train.sampler import GenerateSampler, Sampler
from batuta.lab.train.warmup import run_warmup
from lab.train.stage import LIBRARIES, POLICY, metrics, settings

pytestmark = [
    *LIBRARIES,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]
DRAFT = 'model_id = ["flute"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'


def greedy(sampler, prompts):
    return sampler.sample(
        prompts, 1, max_tokens=24, temperature=0.0, generator=torch.Generator().manual_seed(0)
    )


def test_our_sampler_writes_the_same_on_both(random_policy):
    model, tokenizer = load_policy(str(random_policy), None)
    prompts = tokenizer(["Ask one of them.", "Ask two."], add_special_tokens=False)["input_ids"]
    here = greedy(Sampler.for_workflows(model, tokenizer), prompts)
    model.cuda()
    assert greedy(Sampler.for_workflows(model, tokenizer), prompts) == here
    assert [row[:8] for row in greedy(GenerateSampler(model, tokenizer), prompts)] == [
        row[:8] for row in here
    ]


@pytest.mark.parametrize("prompts", [("Ask one.", "Ask two."), ("Ask one.", "Ask one.")])
def test_a_fit_has_the_same_gradients_on_both(random_policy, prompts):
    model, tokenizer = load_policy(str(random_policy), None)
    batch = [TrainingExample(prompt, DRAFT) for prompt in prompts]
    losses = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        loss = add_gradients(model, tokenizer, batch).drafts
        assert loss is not None
        length = sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None)
        losses.append((loss, math.sqrt(length)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("sampler", ["own", "transformers"])
def test_every_stage_trains_in_bf16(tmp_path, sampler):
    warmup = {**POLICY["warmup"], "steps": 60}
    told = settings(
        tmp_path,
        policy={"bf16": True, "network": {"vocabulary": 512, "hidden": 64, "layers": 2}},
        warmup=warmup,
        optimiser={"sampler": sampler},
        rejection={"rounds": 1, "questions": 8, "group": 4, "steps": 4},
        distil={"steps": 4, "batch": 4},
    )
    run_warmup(told, lambda step, loss: None)
    name = "cello"
    line = {"question": "What is 1 + 1?", "pool": [name], "draft": DRAFT.replace("flute", name)}
    drafts = tmp_path / "drafts.jsonl"
    drafts.write_text(json.dumps(line) + "\n")
    run_distillation(told, drafts, lambda *_: None)
    run_rejection_sampling(told, lambda *_: None)
    train_conductor(told, [], lambda line: None)
    lines = metrics(tmp_path)
    assert len(lines) == 2
    assert all(math.isfinite(line["reward"]) for line in lines)
    assert (tmp_path / "policy" / "model.safetensors").is_file()
