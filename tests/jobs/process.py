"""A process that plays jobs; the tests kill it.

    python tests/jobs/process.py FOLDER_OR_URL PROVIDER_URL JOB…

It conducts each job over four workers of the provider: three steps beside each other and one that
reads them, all of which are calls that a fake provider counts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
from sqlalchemy import URL, make_url

from batuta.clients import Http, Secret, WorkerSpec, open_clients
from batuta.core import Pool, Question, RunId, Step, Worker, WorkerId, Workflow, user
from batuta.engine import conduct
from batuta.jobs import Ending, Job, JobState
from batuta.jobs.durable import DurableJobs
from batuta.solvers import Fixed

IDS = ("ada", "bob", "cyd", "dan")
POOL = Pool(tuple(Worker(WorkerId(name), f"m-{name}") for name in IDS))
STEPS = (
    Step("one", WorkerId("ada")),
    Step("two", WorkerId("bob")),
    Step("three", WorkerId("cyd")),
    Step("all", WorkerId("dan"), (0, 1, 2)),
)


def perform_over(clients):
    async def perform(job, desk):
        async def hear(event):
            await desk.tell({"event": type(event).__name__})

        run = await conduct(
            Question((user(job.body["question"]),)),
            desk.conductor(Fixed("hand", lambda _: Workflow(STEPS))),
            POOL,
            desk.clients(clients),
            emit=desk.emit(hear),
            run_id=RunId(job.id),
        )
        steps = {step.index: step.result.text for step in run.steps}
        return Ending(JobState.COMPLETED, {"answer": run.answer, "steps": [steps[i] for i in range(4)], "calls": run.usage.calls})  # fmt: skip

    return perform


async def main(folder: str, url: str, *ids: str) -> None:
    shared = "://" in folder
    target = (
        make_url(folder) if shared else URL.create("sqlite", database=str(Path(folder) / "jobs.db"))
    )
    async with Http() as http, DurableJobs(target) as jobs, anyio.create_task_group() as tasks:
        specs = [WorkerSpec(w, "compatible", url, Secret(os.environ["PROVIDER_KEY"])) for w in POOL]
        tasks.start_soon(jobs.work, perform_over(open_clients(specs, http)))
        for job_id in ids:
            await jobs.submit(Job(job_id, "ada", {"question": f"Q {job_id}?"}))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
