"""Executors in this process that do to work what a cluster does to it."""

from contextlib import asynccontextmanager

import anyio
import pytest

from batuta.lab.executor import LocalExecutor
from batuta.lab.executor.protocol import set_answer


class Pickling:
    """Its job, items, results, questions and answers are pickled on their way, as Ray does."""

    machines = 1

    processes = 1

    def __init__(self):
        pickler = pytest.importorskip("ray").cloudpickle
        self.copy = lambda value: pickler.loads(pickler.dumps(value))

    async def run_all(self, job, items, deliver, *, concurrency, answer=None):
        copy = self.copy

        class Sent:
            @asynccontextmanager
            async def open(self):
                async with copy(job).open() as execute:

                    async def run_sent(item):
                        return copy(await execute(item))

                    yield run_sent

        async def answer_sent(question):
            return copy(await answer(copy(question)))

        sent = [copy(item) for item in items]
        await LocalExecutor().run_all(
            Sent(), sent, deliver, concurrency=concurrency, answer=answer and answer_sent
        )


class Dying:
    """Items die while they wait for an answer, and are executed again; answers go on, as with Ray."""

    machines = 1

    processes = 1

    def __init__(self, deaths):
        self.deaths = set(deaths)
        """The numbers of the questions at which an item dies."""
        self.died = 0
        self.asked = 0

    async def run_all(self, job, items, deliver, *, concurrency, answer=None):
        waiting = iter(enumerate(items))
        async with anyio.create_task_group() as answering, job.open() as run_item:

            async def execute(place, item):
                while True:
                    with anyio.CancelScope() as life:
                        set_answer(lambda question: self._ask(question, answer, answering, life))
                        deliver(place, await run_item(item))
                    if not life.cancelled_caught:
                        return
                    self.died += 1

            async def work():
                for place, item in waiting:
                    await execute(place, item)

            async with anyio.create_task_group() as group:
                for _ in range(concurrency):
                    group.start_soon(work)
            answering.cancel_scope.cancel()

    async def _ask(self, question, answer, answering, life):
        self.asked += 1
        found, arrived = [], anyio.Event()

        async def reply():
            try:
                found.append((await answer(question), None))
            except Exception as error:
                found.append((None, error))
            arrived.set()

        answering.start_soon(reply)
        if self.asked in self.deaths:
            life.cancel()
        await arrived.wait()
        result, error = found[0]
        if error is not None:
            raise error
        return result
