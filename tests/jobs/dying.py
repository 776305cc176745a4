"""A process with jobs, one of which ends it: python tests/jobs/dying.py FOLDER."""

import os
import sys
from pathlib import Path

import anyio

from batuta.jobs import Job, JobEnding, JobState, open_jobs

NAMES = ("good-1", "bad", "good-2")


async def perform(job, checkpoint):
    await anyio.sleep(0.2)  # so that all of them are running
    if job.id == "bad":
        os._exit(9)
    if job.id == "good-2":
        await anyio.sleep(0.5)
    return JobEnding(JobState.COMPLETED, {"id": job.id})


async def main(folder):
    async with open_jobs(folder / "jobs.db") as jobs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(jobs.work, perform)
            for name in NAMES:
                await jobs.submit(Job(name, "local", {}))
            for name in NAMES:
                while not (status := await jobs.status(name, "local")).state.is_final:
                    await anyio.sleep(0.05)
                sys.stdout.write(f"{name} {status.state.value} {status.error or ''}\n")
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
