"""How long the policy idles while workers answer: synchronous and asynchronous training, side by side.

    python bench/rollouts.py [--steps N] [--staleness 0 1 2 4] [--scale 0.01] [--concurrency N]

The trainer is that of `batuta train conductor`, with the rehearsal's shipped policy; workers are
SIMULATED: they answer after a log-normal time, median 15 s and p99 200 s, times `--scale`. Each
staleness learns from the same questions. Of the steps after the first ones (one more than the
staleness), per step:

  write + learn  seconds in which the policy writes, scores what it wrote, and learns
  workers        seconds that the workers need at the least: all their answers' times over the runs
                 that may be executed at the same time
  longest        seconds of the longest run of a batch: what a synchronous step waits for
  wall           seconds from one step to the next
  idle           share of the wall in which the policy waits for workers

Wanted: wall <= 1.2 x max(write + learn, workers). A synchronous step has write + learn + longest.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import tempfile
import time
import warnings

MEDIAN_S, P99_S = 15.0, 200.0
Z99 = 2.3263
QUESTIONS, GROUP = 16, 8


class SlowClient:
    """A worker that answers wrongly or rightly, in its own time, which its request decides."""

    def __init__(self, inner, scale):
        self.inner, self.scale, self.asked = inner, scale, 0.0

    async def complete(self, request, *listener):
        chance = random.Random(f"{request.sampling.seed} {request.messages}")
        sigma = math.log(P99_S / MEDIAN_S) / Z99
        seconds = self.scale * MEDIAN_S * math.exp(sigma * chance.gauss(0, 1))
        self.asked += seconds
        await asyncio.sleep(seconds)
        return await self.inner.complete(request, *listener)


def settings(folder, options, staleness):
    from batuta.config.settings_file import validate_settings
    from batuta.lab.train.settings import TrainSettings
    from batuta.lab.worlds import shipped_policy_folder

    optimiser = {
        "sampler": "own", "steps": options.steps + warm_steps(options), "questions": QUESTIONS,
        "group": GROUP, "micro_batch": QUESTIONS * GROUP, "learning_rate": 1e-5,
        "schedule": "constant", "warmup": 0.0, "loss": "dapo", "completion": 80, "threads": 1,
        "staleness": staleness,
    }  # fmt: skip
    return validate_settings(
        {
            "output": folder,
            "policy": {"start": str(shipped_policy_folder())},
            "prompt": {"compact": True},
            "pool": {"permute": True, "concurrency": options.concurrency},
            "optimiser": optimiser,
            "log": {"checkpoint_every": 10_000},
        },
        "the benchmark",
        TrainSettings,
    )


def warm_steps(options):
    """Steps that are not counted: until as many batches are in flight as ever will be."""
    return max(options.staleness) + 1


class Walls:
    """Seconds from one step's begin to the next one's, and of each batch's running."""

    def __init__(self):
        self.begun, self.rollouts = [], {}


def open_slow_workers(told, clients, walls):
    """What opens the runner: the rehearsal's workers, slowed down, and its grader."""
    import anyio

    from batuta.lab.task_sources import find_source_grader
    from batuta.lab.train.rollouts import DraftRunner, OpenedDraftRunner, RolloutRunner

    async def judge(task, answer):
        return find_source_grader(task)(task, answer)

    class TimedRunner(RolloutRunner):
        async def run_drafts(self, drafts, seeds, step):
            began = time.perf_counter()
            rollouts = await super().run_drafts(drafts, seeds, step)
            walls.rollouts[step] = time.perf_counter() - began
            return rollouts

    async def open_runner():
        runner = DraftRunner(clients=clients, judge=judge, rendering=told.prompt.rendering())
        places = anyio.Semaphore(told.pool.concurrency, fast_acquire=True)
        return TimedRunner(
            job=OpenedDraftRunner(runner, places),
            rewards=told.reward,
            concurrency=told.pool.concurrency,
        )

    return open_runner


def train(options, staleness, folder):
    """The training's figures: each step's metrics, its walls, and what its workers asked for."""
    from transformers import TrainerCallback

    from batuta.lab.train.episodes import make_episodes
    from batuta.lab.train.questions import draw_questions
    from batuta.lab.train.reward_function import RewardFunction
    from batuta.lab.train.run_folder import RunFolder, read_jsonl
    from batuta.lab.train.trainer import make_trainer
    from batuta.lab.worlds import rehearsal_clients, rehearsal_pool

    told, walls = settings(folder, options, staleness), Walls()
    inner = rehearsal_clients(time_scale=0.0)
    clients = {name: SlowClient(client, options.scale) for name, client in inner.items()}
    asked = make_episodes(draw_questions(told), rehearsal_pool(), told.pool, told.seed)

    class Begins(TrainerCallback):
        def on_step_begin(self, *_, **__):
            walls.begun.append(time.perf_counter())

    opening = open_slow_workers(told, clients, walls)
    reward = RewardFunction(told, asked, opening, lambda step, rollouts: None)
    run = RunFolder(told.output)
    trainer = make_trainer(told, asked, reward=reward, folder=run, on_metrics=run.add_metrics)
    trainer.add_callback(Begins())
    trainer.train()
    walls.begun.append(time.perf_counter())
    return {
        "lines": read_jsonl(run.path / "metrics.jsonl"),
        "walls": [later - at for at, later in zip(walls.begun, walls.begun[1:], strict=False)],
        "longest": [walls.rollouts[step] for step in sorted(walls.rollouts)],
        "asked": sum(client.asked for client in clients.values()) / told.optimiser.steps,
    }


def summarise(found, options):
    """Means over the counted steps."""
    cold = warm_steps(options)
    wall = statistics.fmean(found["walls"][cold:])
    waiting = statistics.fmean(line["time/playing"] for line in found["lines"][cold:])
    workers = found["asked"] / options.concurrency
    work = wall - waiting
    return {
        "write + learn": work,
        "workers": workers,
        "longest": statistics.fmean(found["longest"][cold:]),
        "wall": wall,
        "idle": waiting / wall,
        "wall / max": wall / max(work, workers),
    }


def main(options):
    from batuta.lab.commands.train_settings import _silence_libraries

    _silence_libraries()
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(
        f"simulated workers: log-normal, median {MEDIAN_S * options.scale:.2f} s, p99 "
        f"{P99_S * options.scale:.1f} s; {QUESTIONS} questions x {GROUP}, {options.concurrency} "
        f"runs at a time, {options.steps} steps after {warm_steps(options)}"
    )
    print("staleness  write + learn  workers  longest    wall   idle  wall / max(…)")
    for staleness in options.staleness:
        with tempfile.TemporaryDirectory() as folder:
            each = summarise(train(options, staleness, folder), options)
        print(
            f"{staleness:>9}  {each['write + learn']:>13.2f}  {each['workers']:>7.2f}  "
            f"{each['longest']:>7.2f}  {each['wall']:>6.2f}  {each['idle']:>5.0%}  "
            f"{each['wall / max']:>13.2f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="counted steps")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--scale", type=float, default=0.01, help="of the workers' seconds")
    parser.add_argument("--concurrency", type=int, default=64, help="runs at the same time")
    main(parser.parse_args())
