"""What TRL costs a training step, beside a minimal loop, in one process and step by step in turns.

`batuta`: `batuta train conductor`'s trainer. `minimal`: GRPO written out below, with nothing around
it: the same policy, sampler, questions, workers, reward, batch and log-probabilities that read a
prompt once a group. `TRL's pass`: the trainer with TRL's own log-probabilities instead of ours. A step
is 48 questions, 10 workflows each (or as told), from one to the next: sampling, running, and the
rest, which is update and book-keeping. CPU is of the whole process. `python bench/train.py
[questions] [steps]`
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from types import MethodType, SimpleNamespace

QUESTIONS, GROUP, STEPS, COLD = 48, 10, 4, 1
"""Steps are measured after the cold ones."""
PARTS = ("sampling", "running", "update")


def settings(folder, questions, steps):
    from batuta.config.settings_file import validate_settings
    from batuta.lab.train.settings import TrainSettings
    from batuta.lab.worlds import shipped_policy_folder

    optimiser = {
        "sampler": "own", "steps": steps, "questions": questions, "group": GROUP,
        "micro_batch": questions * GROUP, "learning_rate": 1e-5, "schedule": "constant", "warmup": 0.0,
        "scale": "batch", "loss": "dapo", "entropy": 0.012, "max_grad_norm": 0.5, "completion": 80,
        "threads": 1,
    }  # fmt: skip
    return validate_settings(
        {
            "output": folder,
            "policy": {"start": str(shipped_policy_folder())},
            "prompt": {"compact": True},
            "pool": {"permute": True},
            "reward": {"cost": "tokens", "coefficient": 0.03},
            "optimiser": optimiser,
            "log": {"checkpoint_every": 10_000},
        },
        "the benchmark",
        TrainSettings,
    )


class Turns:
    """Threads that work one at a time, a step each, in a fixed order."""

    def __init__(self, names):
        self.names = list(names)
        self.open = {name: threading.Event() for name in names}
        self.open[self.names[0]].set()

    def take(self, name):
        self.open[name].wait()

    def give(self, name):
        self.open[name].clear()
        self.open[self.names[(self.names.index(name) + 1) % len(self.names)]].set()


class Clock:
    """Wall and CPU seconds of each part of each step."""

    def __init__(self):
        self.steps, self.parts, self.began = [], {}, None

    def now(self):
        return time.perf_counter(), time.process_time()

    def add(self, part, began):
        took = [after - before for before, after in zip(began, self.now(), strict=True)]
        self.parts[part] = [a + b for a, b in zip(self.parts.get(part, (0, 0)), took, strict=True)]

    def begin(self):
        self.parts, self.began = {}, self.now()

    def end(self):
        self.add("step", self.began)
        known = zip(self.parts["sampling"], self.parts["running"], strict=True)
        rest = [s - sum(k) for s, k in zip(self.parts["step"], known, strict=True)]
        self.steps.append({**self.parts, "update": rest})


class TimedReward:
    """The reward, timed."""

    __name__ = "timed"

    def __init__(self, reward, clock):
        self.reward, self.clock, self.run_first_rounds = reward, clock, reward.run_first_rounds

    async def __call__(self, **told):
        began = self.clock.now()
        rewards = await self.reward(**told)
        self.clock.add("running", began)
        return rewards


def world(told):
    """The episodes of the training."""
    from batuta.lab.train.episodes import make_episodes
    from batuta.lab.train.questions import draw_questions
    from batuta.lab.worlds import rehearsal_pool

    return make_episodes(draw_questions(told), rehearsal_pool(), told.pool, told.seed)


def trainer(told, clock, hand_over, own_pass):
    """TRL's trainer as `batuta train conductor` makes it; runs to its end."""
    from transformers import TrainerCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    from batuta.lab.train.reward_function import RewardFunction
    from batuta.lab.train.rollout_setup import RolloutRunnerFactory
    from batuta.lab.train.run_folder import RunFolder
    from batuta.lab.train.trainer import make_trainer

    class Hand(TrainerCallback):
        def on_step_begin(self, *_, **__):
            if clock.began:  # the step before ends here, its book-keeping included
                clock.end()
                hand_over()
            clock.begin()

        def on_train_end(self, *_, **__):
            clock.end()

    asked, folder = world(told), RunFolder(told.output)
    opening = RolloutRunnerFactory(told, folder)
    reward = TimedReward(RewardFunction(told, asked, opening, lambda step, rollouts: None), clock)
    grpo = make_trainer(told, asked, reward=reward, folder=folder, on_metrics=lambda line: None)
    rollout = grpo.rollout_func

    def timed(*args):
        began = clock.now()
        rows = rollout(*args)
        clock.add("sampling", began)
        return rows

    grpo.rollout_func = timed
    grpo.add_callback(Hand)
    if not own_pass:
        theirs = GRPOTrainer._get_per_token_logps_and_entropies
        grpo._get_per_token_logps_and_entropies = MethodType(theirs, grpo)
    grpo.train()
    asyncio.run_coroutine_threadsafe(opening.close(), grpo.async_loop).result()


def minimal(told, clock, hand_over):
    """GRPO with nothing around it (Conductor paper, section 4.1; loss and scale as in the recipe)."""
    import torch

    from batuta.lab.train.episodes import render_chat_prompt
    from batuta.lab.train.grpo import SharedPromptTrainer
    from batuta.lab.train.model import load_policy
    from batuta.lab.train.rollout_setup import RolloutRunnerFactory
    from batuta.lab.train.rollouts import PolicyDraft
    from batuta.lab.train.run_folder import RunFolder
    from batuta.lab.train.sampler import Sampler

    o, asked = told.optimiser, world(told)
    torch.set_num_threads(o.threads)
    model, tokenizer = load_policy(told.policy.start, None)
    pad = int(tokenizer.pad_token_id)
    adamw = torch.optim.AdamW(model.parameters(), o.learning_rate, o.betas, weight_decay=0.0)
    sampler = Sampler(model, pad=pad, end=int(tokenizer.eos_token_id))
    bare = SimpleNamespace(accelerator=SimpleNamespace(unwrap_model=lambda m: m), temperature=1.0)
    opening = RolloutRunnerFactory(told, RunFolder(told.output))
    with asyncio.Runner() as runner:
        rollout_runner = runner.run(opening())
        for step in range(o.steps):
            clock.begin()
            batch = asked[step * o.questions : (step + 1) * o.questions]
            began = clock.now()
            texts = [
                render_chat_prompt(tokenizer, e.request(told.prompt.rendering())) for e in batch
            ]
            prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
            chance = torch.Generator().manual_seed(step)
            rows = sampler.sample(
                prompts, o.group, max_tokens=o.completion, temperature=1.0, generator=chance
            )
            clock.add("sampling", began)
            began = clock.now()
            said = tokenizer.batch_decode(rows, skip_special_tokens=True)
            prompts = [prompt for prompt in prompts for _ in range(o.group)]
            drafts = [
                (
                    batch[at // o.group],
                    PolicyDraft(text=text, prompt_tokens=len(prompts[at]), tokens=len(rows[at])),
                )
                for at, text in enumerate(said)
            ]
            rollouts = runner.run(rollout_runner.run_drafts(drafts, range(len(drafts)), step))
            clock.add("running", began)
            rewards = torch.tensor([each.reward for each in rollouts]).view(-1, o.group)
            advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
            advantages = advantages / (rewards.std() + 1e-4)
            ids, mask, longest = padded(prompts, rows, pad)
            logps, entropies, _ = SharedPromptTrainer._get_per_token_logps_and_entropies(
                bare,
                model,
                attention_mask=ids,
                logits_to_keep=mask,
                batch_size=longest,
                compute_entropy=True,
            )
            written = mask[:, -longest:]
            gain = torch.exp(logps - logps.detach()) * advantages + o.entropy * entropies
            loss = -(gain * written).sum() / written.sum()
            adamw.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), o.max_grad_norm)
            adamw.step()
            clock.end()
            if step < o.steps - 1:
                hand_over()
        runner.run(opening.close())


def padded(prompts, rows, pad):
    """Ids and mask, prompts to the left and completions to the right; the longest completion."""
    import torch

    before, after = max(map(len, prompts)), max(map(len, rows))
    ids = torch.full((len(rows), before + after), pad)
    mask = torch.zeros_like(ids)
    for at, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        where = slice(before - len(prompt), before + len(row))
        ids[at, where] = torch.tensor(prompt + row)
        mask[at, where] = 1
    return ids, mask, after


SYSTEMS = {
    "minimal": minimal,
    "batuta": lambda *told: trainer(*told, own_pass=True),
    "TRL's pass": lambda *told: trainer(*told, own_pass=False),
}


def measured(questions, steps):
    """Each system's steps, without the cold ones."""
    from batuta.lab.train.allocator import retain_freed_memory

    retain_freed_memory()
    turns, clocks = Turns(SYSTEMS), {name: Clock() for name in SYSTEMS}

    def work(name, folder):
        def hand_over():
            turns.give(name)
            turns.take(name)

        turns.take(name)
        try:
            SYSTEMS[name](settings(Path(folder), questions, steps + COLD), clocks[name], hand_over)
        finally:
            turns.give(name)

    with tempfile.TemporaryDirectory() as folder:
        threads = [
            threading.Thread(target=work, args=(name, f"{folder}/{at}"))
            for at, name in enumerate(SYSTEMS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {name: clock.steps[COLD:] for name, clock in clocks.items()}


def run(questions=QUESTIONS, steps=STEPS):
    from batuta.lab.commands.train_settings import _silence_libraries

    _silence_libraries()
    warnings.filterwarnings("ignore", category=FutureWarning)
    rows = measured(questions, steps)
    print(
        f"{questions} questions x {GROUP} workflows, {steps} steps each, medians, one torch thread"
    )
    print(f"{'':<11}{'':<5}{'step':>8}" + "".join(f"{part:>10}" for part in PARTS) + "   seconds")
    found = {}
    for name, lines in rows.items():
        for which, kind in enumerate(("wall", "CPU")):
            found[name, kind] = {
                part: statistics.median(line[part][which] for line in lines)
                for part in ("step", *PARTS)
            }
            values = found[name, kind]
            print(
                f"{name:<11}{kind:<5}{values['step']:>8.2f}"
                + "".join(f"{values[part]:>10.2f}" for part in PARTS)
            )
    for name in list(SYSTEMS)[1:]:
        ratios = [
            f"{kind} {statistics.median(ours['step'][at] / least['step'][at] for ours, least in zip(rows[name], rows['minimal'], strict=True)):.2f}"
            for at, kind in enumerate(("wall", "CPU"))
        ]
        print(f"{name} / minimal, step: {', '.join(ratios)}")
    return found


if __name__ == "__main__":
    run(*map(int, sys.argv[1:3]))
