"""A process that runs jobs; the tests kill it.

    python tests/jobs/process.py FOLDER_OR_URL PROVIDER_URL JOB…

It conducts each job over four workers of the provider: three steps beside each other and one that
reads them, all of which are calls that a fake provider counts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from batuta.clients import HttpTransport, Secret, WorkerSpec, open_clients
from batuta.conductors import FixedConductor
from batuta.core import Pool, Question, RunId, Step, Worker, WorkerId, Workflow, user_message
from batuta.engine import RunHooks, conduct
from batuta.jobs import Job, JobEnding, JobState, open_jobs

IDS = ("ada", "bob", "cyd", "dan")
POOL = Pool(tuple(Worker(id=WorkerId(name), model=f"m-{name}") for name in IDS))
STEPS = (
    Step(subtask="one", worker=WorkerId("ada")),
    Step(subtask="two", worker=WorkerId("bob")),
    Step(subtask="three", worker=WorkerId("cyd")),
    Step(subtask="all", worker=WorkerId("dan"), access=(0, 1, 2)),
)


def perform_over(clients):
    async def perform(job, checkpoint):
        async def hear(event):
            await checkpoint.add_event({"event": type(event).__name__})

        run = await conduct(
            Question(messages=(user_message(job.body["question"]),)),
            checkpoint.wrap_conductor(FixedConductor("hand", lambda _: Workflow(STEPS))),
            POOL,
            checkpoint.wrap_clients(clients),
            hooks=RunHooks(emit=checkpoint.wrap_emit(hear), run_id=RunId(job.id)),
        )
        steps = {step.index: step.result.text for step in run.steps}  # pyright: ignore[reportAttributeAccessIssue]
        return JobEnding(JobState.COMPLETED, {"answer": run.answer, "steps": [steps[i] for i in range(4)], "calls": run.usage.calls})  # fmt: skip

    return perform


async def main(folder: str, url: str, *ids: str) -> None:
    target = folder if "://" in folder else Path(folder) / "jobs.db"
    async with (
        HttpTransport() as http,
        open_jobs(target) as jobs,
        anyio.create_task_group() as tasks,
    ):
        specs = [
            WorkerSpec(
                worker=w,
                provider="compatible",
                base_url=url,
                key=Secret(os.environ["PROVIDER_KEY"]),
            )
            for w in POOL
        ]
        tasks.start_soon(jobs.work, perform_over(open_clients(specs, http)))
        for job_id in ids:
            await jobs.submit(Job(job_id, "ada", {"question": f"Q {job_id}?"}))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])  # pyright: ignore[reportArgumentType]
