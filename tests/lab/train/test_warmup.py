"""The warm start teaches the syntax: every draft is well-formed, every hint is true."""

import json
import re
from itertools import islice
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Plan, Pool, Reply, Round, StepRun, TimeSpan, Worker, WorkerId, Workflow
from batuta.lab import worlds
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.train import fitting
from batuta.lab.train.episodes import render_user_prompt
from batuta.lab.train.fitting import TrainingExample, add_gradients, fit_examples
from batuta.lab.train.model import END, PAD, make_model, make_tokenizer
from batuta.lab.train.settings import WarmupSettings
from batuta.lab.train.warmup import (
    ROLE_ASSIGNMENTS,
    apply_role_assignment,
    draw_hints,
    warmup_texts,
)
from batuta.language import ACCEPTED, PromptOptions, parse_workflow

POOL = worlds.rehearsal_pool()
COMPACT = PromptOptions(descriptions=False, compact=True)
ASKED = worlds.draw_tasks(None, 40, 3)


def first_rounds():
    """Workflows that were run, in a few words."""
    rng = Random(0)
    for task in ASKED[:10]:
        flow = random_workflow(rng, POOL)
        steps = tuple(
            StepRun(
                index=i,
                planned=s.worker,
                worker=s.worker,
                request=None,
                result=Reply(text="Answer: 7"),
                span=TimeSpan(0, 1),
            )
            for i, s in enumerate(flow.steps)
        )
        yield task, POOL, Round(decision=Plan(flow), workflow=flow, steps=steps)


@pytest.mark.parametrize(
    "told",
    [
        WarmupSettings(steps=10, batch=8, drills=0.5, revisions=0.3, hints=0.5),
        WarmupSettings(steps=10, batch=8, drills=0.0, revisions=0.0, hints=1.0, names=["celesta"]),
        WarmupSettings(steps=10, batch=8, names=["celesta", POOL.workers[0].id, "celesta"]),
    ],
    ids=["every kind", "hints and a name more", "names that have joined, or twice"],
)
def test_every_draft_can_be_read_and_calls_only_whom_the_prompt_lists(told):
    more = tuple(Worker(id=WorkerId(n), model=n) for n in {*told.names} if WorkerId(n) not in POOL)
    anyone = Pool((*POOL.workers, *more))
    kinds = set()
    for prompt, draft in islice(
        warmup_texts(
            ASKED,
            POOL,
            rendering=COMPACT,
            settings=told,
            first_rounds=list(first_rounds()),
            seed=1,
        ),
        400,
    ):
        later = "\nPlayed:\n" in prompt
        read = parse_workflow(draft, anyone, revise=later)
        kinds.add("stands" if draft == ACCEPTED else "later" if later else "first")
        if draft != ACCEPTED:
            (listed,) = re.findall(r"^Models: (\[.*\])$", prompt, re.MULTILINE)
            assert {step.worker for step in read.steps} <= set(json.loads(listed))  # pyright: ignore[reportAttributeAccessIssue]
            assert all(len(read) <= int(n) for n in re.findall(r"At most (\d) steps", prompt))  # pyright: ignore[reportArgumentType]
    assert kinds == ({"first", "later", "stands"} if told.revisions else {"first"})


@given(seed=st.integers(0, 100_000))
def test_hints_disclose_true_facts(seed):
    rng = Random(seed)
    flow = random_workflow(rng, POOL)
    true = {f"Take {len(flow)} steps."}
    for at, step in enumerate(flow.steps):
        true |= {f"Step {at} {step.worker}.", f"Step {at}: {step.subtask}"}
        true.add(f"Let step {at} read {', '.join(map(str, step.access))}.")
    told = draw_hints(flow, rng)
    assert told and set(told) <= true


TOKENIZER = make_tokenizer([task.question for task in ASKED], 400)


@given(st.integers(0, 10**6), st.integers(0, ROLE_ASSIGNMENTS - 1), st.integers(0, 99))
def test_a_custom_says_who_does_what_wherever_the_workers_are_listed(seed, number, order):
    flow = random_workflow(Random(seed), POOL)
    found = apply_role_assignment(flow, number, POOL)
    assert found == apply_role_assignment(flow, number, POOL.shuffled(Random(order)))
    assert [(s.subtask, s.access) for s in found.steps] == [
        (s.subtask, s.access) for s in flow.steps
    ]
    offices = {(step.subtask.split()[0], step.worker) for step in found.steps}
    assert len(offices) == len({deed for deed, _ in offices})


def test_customs_differ_and_none_has_one_worker_for_all():
    every = [step for seed in range(40) for step in random_workflow(Random(seed), POOL).steps]
    told = [
        apply_role_assignment(Workflow(tuple(every)), number, POOL)
        for number in range(ROLE_ASSIGNMENTS)
    ]
    assert len(set(told)) == ROLE_ASSIGNMENTS
    assert all(len({step.worker for step in flow.steps}) > 2 for flow in told)


@given(text=st.text())
def test_any_text_can_be_said_in_the_tokenizer(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text


def test_the_chat_template_opens_the_reply_and_the_signs_are_single_tokens():
    said = render_user_prompt(TOKENIZER, "Hello")
    assert said.endswith("<|assistant|>") and "Hello" in said
    for sign in (PAD, END, "<|user|>"):
        assert len(TOKENIZER(sign)["input_ids"]) == 1
    assert TOKENIZER.eos_token == END and TOKENIZER.pad_token == PAD


def test_the_frame_of_the_three_lists_costs_few_tokens():
    drafts = [
        draft
        for _, draft in islice(
            warmup_texts(
                ASKED, POOL, rendering=COMPACT, settings=WarmupSettings(), first_rounds=[], seed=2
            ),
            300,
        )
    ]
    made = make_tokenizer(drafts, 500)
    lengths = [len(made(draft)["input_ids"]) for draft in drafts]
    bytes_ = [len(draft.encode()) for draft in drafts]
    assert sum(lengths) < sum(bytes_) / 3


def seven_examples():
    """A tokenizer, and examples of different lengths and weights."""
    told = WarmupSettings(steps=10, batch=8, drills=0.5, revisions=0.0)
    pairs = list(
        islice(
            warmup_texts(ASKED, POOL, rendering=COMPACT, settings=told, first_rounds=[], seed=1),
            44,
        )
    )
    tokenizer = make_tokenizer((text for pair in pairs for text in pair), 400)
    some = [
        TrainingExample(render_user_prompt(tokenizer, p), d, 1 + n % 3)
        for n, (p, d) in enumerate(pairs[-7:])
    ]
    return tokenizer, some


@pytest.mark.parametrize("prompt_weight", [0.0, 0.3])
def test_a_batch_in_parts_teaches_what_it_teaches_whole(monkeypatch, prompt_weight):
    tokenizer, some = seven_examples()

    def fitted(parts):
        """The weights and the losses of three steps with a batch in so many parts."""
        monkeypatch.setattr(fitting, "BATCH_PARTS", parts)
        torch.manual_seed(1)
        model = make_model(tokenizer, hidden=32, layers=2, heads=2, kv_heads=1, inner=32)
        losses = []

        def heard(_, loss):
            losses.append(loss.shown)

        fit_examples(
            model,
            tokenizer,
            batches=iter([some] * 3),
            steps=3,
            learning_rate=1e-3,
            on_step=heard,
            prompt_weight=prompt_weight,
        )
        return torch.cat([each.flatten() for each in model.parameters()]), losses

    whole, losses = fitted(1)
    assert losses[-1] < losses[0]
    for parts in (3, 7):
        other, heard = fitted(parts)
        assert heard == pytest.approx(losses, abs=1e-4)
        assert (other - whole).abs().mean() < 1e-4


@pytest.mark.parametrize("prompt_weight", [0.0, 0.3])
def test_gradients_are_those_of_the_weighted_loss_over_the_whole_batch(prompt_weight):
    tokenizer, some = seven_examples()
    torch.manual_seed(1)
    model = make_model(tokenizer, hidden=32, layers=2, heads=2, kv_heads=1, inner=32)
    lost, weights, of_drafts = [], [], []
    for one in some:
        prompt, draft = tokenizer([one.prompt, f"{one.draft}{END}"])["input_ids"]
        ids = torch.tensor([prompt + draft])
        logits = model(ids).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        lost.append(losses)
        weights += [prompt_weight] * (len(prompt) - 1) + [float(one.weight)] * len(draft)
        of_drafts.append(losses[-len(draft) :])
    of_each = torch.tensor(weights)
    ((torch.cat(lost) * of_each).sum() / of_each.sum()).backward()
    wanted = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    heard = add_gradients(model, tokenizer, some, prompt_weight).drafts
    assert heard == pytest.approx(float(torch.cat(of_drafts).detach().mean()), abs=1e-4)
    for each, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(each.grad, gradient, atol=1e-6)  # pyright: ignore[reportArgumentType]
