"""Runs items in actors of a Ray cluster: many processes, on one machine or on many.

The driver repeatedly calls `exchange` of each actor, which takes as many items as the actor has
free slots and returns finished items and the items' questions. Ray restarts an actor that dies, on
any machine with room, and the actor's unfinished items run again. The journal of calls keeps their
finished calls from being paid twice.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast, final
from uuid import uuid4

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from batuta.distribution import package_version
from batuta.errors import ConfigError, ExecutorError
from batuta.lab.executor.protocol import Answer, ExecutorJob, ItemT, ResultT, refuse_question
from batuta.lab.executor.ray_worker import Exchange, RayWorker, portable_error

BATCH = 64
"""Maximum number of items sent with one call of an actor."""
RESTARTS = 4
"""Maximum number of restarts of an actor."""
ATTEMPTS = 3
"""The number of deaths of one item's process after which all work ends with an error."""
CORES_EACH = 0.5
"""Maximum share of a core that an actor requests. It is large enough to spread the actors over the
machines, and small enough to be granted."""
START_TIMEOUT_S = 120.0
"""Seconds in which all actors must have started."""
STARTS = 3
"""Maximum attempts to start a cluster. Ray gives its node 30 s, too few on a busy machine."""
REVIVAL_POLL_S = 0.2
"""Seconds between two checks of an actor that is being restarted."""
SERVE_POLL_S = 2.0
"""Seconds to wait for an actor to open a job before checking whether it could not read the job."""
END_TIMEOUT_S = 5.0
"""Seconds that an actor has to close its job."""
_TOO_SLOW = "timed out during startup"
"""Part of the message with which Ray gives up on its node."""


@asynccontextmanager
async def open_ray(
    address: str | None = None, workers: int | None = None
) -> AsyncGenerator[RayExecutor]:
    """Yield an executor on the actors of a cluster.

    When the block ends, the actors end, and so does a cluster that was started for them.

    Args:
        address: `local`: a new cluster here; `HOST:PORT`: the cluster there; None: the cluster that
            RAY_ADDRESS names or that runs on this machine, else a new cluster here. It is ignored
            if this process is connected to a cluster.
        workers: number of actors; None: one for each free core.

    Raises:
        ConfigError: the cluster cannot be reached, does not start every actor in time, or has
            machines with another version of Batuta.
    """
    ray = _import_ray()
    started = not ray.is_initialized()
    try:
        if started:
            await anyio.to_thread.run_sync(_connect_cluster, ray, address)
        executor = await anyio.to_thread.run_sync(_start_actors, ray, workers)
        try:
            yield executor
        finally:
            for actor in executor.actors:
                ray.kill(actor)
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # noqa: PLC0415 - an extra that loads slowly

    return cast("Any", ray)


def _connect_cluster(ray: Any, address: str | None) -> None:
    """Join the cluster, or start one."""
    for left in reversed(range(STARTS)):
        try:
            ray.init(
                address=address,
                include_dashboard=None if address not in {None, "local"} else False,
                configure_logging=False,
                log_to_driver=False,
            )
        except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception if a node does not start
            first = str(error).strip().partition("\n")[0]
            if left and _TOO_SLOW in first:
                ray.shutdown()
                continue
            where = f"address={address}" if address else "RAY_ADDRESS or local"
            raise ConfigError(f"no usable Ray cluster ({where}): {first}") from None
        return


def _start_actors(ray: Any, workers: int | None) -> RayExecutor:
    """Start that many actors spread over the cluster; None: one for each free core."""
    free = int(ray.available_resources().get("CPU", 0))
    number = workers or max(1, free)
    cores = min(CORES_EACH, max(free, 1) / number)
    remote = ray.remote(
        num_cpus=cores,
        max_restarts=RESTARTS,
        max_task_retries=0,
        max_concurrency=8,
        scheduling_strategy="SPREAD",
    )(RayWorker)
    actors = [remote.remote() for _ in range(number)]
    try:
        machines = ray.get([actor.describe.remote() for actor in actors], timeout=START_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the cluster did not start every worker process of Batuta: {first}"
        ) from None
    others = {f"{version} on {host}" for host, version in machines if version != package_version()}
    if others:
        wrong = ", ".join(sorted(others))
        raise ConfigError(
            f"the cluster runs another version of Batuta than this one, {package_version()}: "
            f"{wrong}; install the same version on every machine"
        )
    return RayExecutor(ray, actors, len({host for host, _ in machines}))


@final
class RayExecutor:
    """Runs items on actors; made by `open_ray`."""

    def __init__(self, ray: Any, actors: Sequence[Any], machines: int) -> None:
        self.ray = ray
        self.actors = tuple(actors)
        self.machines = machines
        self.processes = len(self.actors)
        self._lock = anyio.Lock()  # an actor serves one `run_all` at a time

    async def run_all(
        self,
        job: ExecutorJob[ItemT, ResultT],
        items: Sequence[ItemT],
        deliver: Callable[[int, ResultT], None],
        *,
        concurrency: int,
        answer: Answer | None = None,
    ) -> None:
        """Run every item; see `Executor`.

        Raises:
            ExceptionGroup: contains the first error of the job or of `deliver`, or an
                ExecutorError if all actors were lost, one item's process died too often, or an
                actor cannot read the job.
            ExecutorError: the job cannot be sent to other processes.
        """
        if not items:
            return
        work = _Work(self.ray, self._send_job(job), items, deliver)
        used = self.actors[: min(len(self.actors), concurrency)]
        slots, more = divmod(concurrency, len(used))
        async with self._lock, anyio.create_task_group() as answering:
            answers = _Answering(self.ray, answering, answer)
            async with anyio.create_task_group() as group:
                for number, actor in enumerate(used):
                    dispatcher = _ActorDispatcher(work, actor, slots + (number < more), answers)
                    group.start_soon(dispatcher.run)
            answering.cancel_scope.cancel()  # the remaining answers are for dead processes

    def _send_job(self, job: ExecutorJob[Any, Any]) -> Any:
        """Store the job in the cluster, and return a reference by which every actor reads it."""
        try:
            return self.ray.put(job)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ExecutorError(f"the work cannot be sent to other processes: {error}") from None


@final
class _Work:
    """The items of one `run_all` and their state, shared by the dispatchers."""

    def __init__(
        self, ray: Any, job: Any, items: Sequence[Any], deliver: Callable[[int, Any], None]
    ) -> None:
        self.ray = ray
        self.job = job
        self._items = items
        self._deliver = deliver
        self._waiting = deque(range(len(items)))
        self._left = set(range(len(items)))
        self._lost = Counter[int]()
        self._changed = anyio.Event()
        self.dispatchers = 0
        """Number of dispatchers with an actor that can still run items."""

    @property
    def done(self) -> bool:
        """Whether every result was delivered."""
        return not self._left

    @property
    def has_waiting(self) -> bool:
        """Whether items are waiting for a free slot."""
        return bool(self._waiting)

    def take(self, number: int) -> list[tuple[int, Any]]:
        """Return up to `number` items to run, at most `BATCH`, with their indices."""
        most = min(number, BATCH, len(self._waiting))
        indices = [self._waiting.popleft() for _ in range(most)]
        return [(index, self._items[index]) for index in indices]

    def settle(self, index: int, result: Any, error: Exception | None) -> None:
        """Raise the error, or deliver the result unless the item's result was delivered before."""
        if error is not None:
            raise error
        if index in self._left:
            self._deliver(index, result)
            self._left.discard(index)
            if self.done:
                self._notify()

    def requeue(self, lost: set[int]) -> None:
        """Put the items that a dead actor was running back into the queue.

        Raises:
            ExecutorError: an item's process has died `ATTEMPTS` times.
        """
        self._lost.update(lost)
        for index in lost:
            if self._lost[index] >= ATTEMPTS:
                raise ExecutorError(
                    f"item {index}: its process died {ATTEMPTS} times while running it; "
                    "look for the cause, such as too little memory"
                )
        self._waiting.extendleft(sorted(lost, reverse=True))
        self._notify()

    async def wait(self) -> None:
        """Wait until items are put back into the queue or every result was delivered."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@final
class _Answering:
    """Answers the items' questions in separate tasks, which may outlive the items' dispatchers."""

    def __init__(self, ray: Any, group: TaskGroup, answer: Answer | None) -> None:
        self._ray = ray
        self._group = group
        self._answer = answer

    def start(self, actor: Any, token: str, number: int, question: Any) -> None:
        """Start to answer question `number` of the actor's job with that token."""
        self._group.start_soon(self._reply, actor, token, number, question)

    async def _reply(self, actor: Any, token: str, number: int, question: Any) -> None:
        result, error = None, None
        try:
            result = await (self._answer or refuse_question)(question)
        except Exception as raised:  # noqa: BLE001 - raised in the item that asked
            error = portable_error(raised)
        # If the actor has died, the item runs again and asks again.
        with suppress(self._ray.exceptions.RayActorError):
            await actor.answer.remote(token, number, result, error)


@final
class _ActorDispatcher:
    """Sends items to one actor, and collects their results and questions."""

    def __init__(self, work: _Work, actor: Any, slots: int, answers: _Answering) -> None:
        self._work = work
        self._answers = answers
        self._actor = actor
        self._slots = slots
        self._running: set[int] = set()
        self._token = ""
        work.dispatchers += 1

    async def run(self) -> None:
        """Run until every result was delivered, or the actor is permanently lost.

        Raises:
            ExecutorError: no actor is left, an item's process died too often, or the actor cannot
                read the job.
            Exception: raised by the job, an item or `deliver`.
        """
        ray = self._work.ray
        try:
            await self._revive(ray)
            while not self._work.done:
                await self._exchange_once(ray)
        except ray.exceptions.ActorDiedError as error:
            self._work.dispatchers -= 1
            self._requeue_running()
            if not self._work.dispatchers:
                raise ExecutorError(f"the Ray cluster has no actor left: {error}") from None
        finally:
            await self._end(ray)

    async def _exchange_once(self, ray: Any) -> None:
        """Send items for the free slots, and settle items that have ended."""
        items = self._work.take(self._slots - len(self._running))
        if not items and not self._running:
            await self._work.wait()
            return
        self._running.update(index for index, _ in items)
        more = self._slots > len(self._running) and self._work.has_waiting
        exchange = self._actor.exchange.remote
        try:
            found: Exchange | None = await exchange(self._token, items, more=more)
        except ray.exceptions.ActorDiedError:
            raise
        except ray.exceptions.RayActorError:  # the actor is being restarted, or is unreachable
            found = None
        if found is None:
            self._requeue_running()
            await self._revive(ray)
            return
        for number, question in found.asked:
            self._answers.start(self._actor, self._token, number, question)
        for index, result, error in found.ended:
            self._running.discard(index)
            self._work.settle(index, result, error)

    async def _revive(self, ray: Any) -> None:
        """Wait until the actor runs, and make it open the job."""
        while True:
            try:
                await self._actor.describe.remote()
                await self._open_job(ray)
            except ray.exceptions.ActorDiedError:
                raise
            except ray.exceptions.RayActorError:
                await anyio.sleep(REVIVAL_POLL_S)
            else:
                return

    async def _end(self, ray: Any) -> None:
        """Make the actor close its job; an actor that does not answer in time is abandoned."""
        with anyio.move_on_after(END_TIMEOUT_S, shield=True):
            with suppress(ray.exceptions.RayActorError):
                await self._actor.end.remote(self._token)

    async def _open_job(self, ray: Any) -> None:
        """Make the actor open the job, and wait for that: later calls could overtake `serve`."""
        self._token = uuid4().hex
        serving = self._actor.serve.remote(self._token, self._work.job)
        while not await self._actor.is_serving.remote(self._token, SERVE_POLL_S):
            ended, _ = ray.wait([serving], timeout=0)
            if ended:
                try:
                    await serving
                except ray.exceptions.RayActorError:
                    raise
                except ray.exceptions.RayError as error:
                    raise ExecutorError(f"a worker cannot read the job: {error}") from None

    def _requeue_running(self) -> None:
        lost, self._running = self._running, set()
        self._work.requeue(lost)
