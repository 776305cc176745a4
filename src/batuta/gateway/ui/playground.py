"""The playground: a question asked, its workflow seen while it is written and played."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batuta.core import Run
from batuta.gateway.baselines import BASELINE
from batuta.gateway.caller import Role
from batuta.gateway.deliver import streamed
from batuta.gateway.effort import EFFORTS
from batuta.gateway.gate import need_key
from batuta.gateway.line import Line
from batuta.gateway.models import ULTRA, WORKER, Orchestra, Served
from batuta.gateway.play import Booking, Player
from batuta.gateway.refusal import Refusal, not_found
from batuta.gateway.reply import ReaderGone, read_fields
from batuta.gateway.ui.live import PageTeller
from batuta.gateway.ui.overheard import Overheard
from batuta.gateway.ui.screens import screen
from batuta.gateway.ui.visitor import Door, Visitor, check
from batuta.gateway.wire.call import Call
from batuta.gateway.wire.chat import parse_chat
from batuta.gateway.wire.fields import Fields
from batuta.solvers.recorded import Recorded

Groups = tuple[tuple[str, tuple[Served, ...]], ...]


def groups(models: Iterable[Served]) -> Groups:
    """The served models as a list of choices shows them."""
    known = tuple(models)
    workers = tuple(each for each in known if each.name.startswith(WORKER))
    baselines = tuple(each for each in known if each.name.startswith(BASELINE))
    rest = tuple(each for each in known if each not in workers and each not in baselines)
    named = (("Batuta", rest), ("Published methods", baselines), ("One worker", workers))
    return tuple((name, members) for name, members in named if members)


def default_model(orchestra: Orchestra) -> str:
    """What is asked unless somebody chooses."""
    return ULTRA if orchestra.find(ULTRA) else orchestra.models[0].name


@final
class Playground:
    """The screen."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """The composer; `again` fills it with a run's question, `replay` plays a run's workflow."""
        query, orchestra = request.query_params, self._orchestra
        given = query.get("again") or query.get("replay")
        run = await stored(orchestra, given, visitor) if given else None
        model = query.get("model") or (run.header.model if run else "")
        limits = run.header.limits if run else None
        chosen = {worker.id for worker in run.header.pool} if run else set[str]()
        return screen(
            request,
            "play.html.jinja",
            visitor=visitor,
            question=run.header.question.text if run else query.get("question", ""),
            served=groups(
                m for m in orchestra.models if visitor.caller.policy.allows_model(m.name)
            ),
            model=model if orchestra.find(model) else default_model(orchestra),
            efforts=EFFORTS,
            chosen_effort=run.header.question.sampling.effort if run else None,
            max_cost="" if limits is None or limits.usd is None else limits.usd,
            deadline="",
            pool=orchestra.pool,
            workers=chosen,
            replay=query.get("replay"),
            examples=orchestra.showcase.examples if run is None else (),
            simulated=orchestra.showcase.simulated,
        )


@final
class Ask:
    """POST /ui/ask: the body of a chat completion, or `replay` with a run's id; answers in events.

    It is booked and played as a call of the API is, by the same rules and limits.
    """

    def __init__(self, orchestra: Orchestra, player: Player, door: Door) -> None:
        self._orchestra = orchestra
        self._player = player
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refusal: before anything was said.
        """
        request = Request(scope, receive)
        visitor = self._door.meet(request)
        if visitor.caller.role is Role.NOBODY:
            raise need_key()
        check(visitor, request.headers.get("x-token"))
        try:
            body = await read_fields(scope, receive)
        except ReaderGone:
            return
        replayed = body.text("replay")
        run = await stored(self._orchestra, replayed, visitor) if replayed else None
        call = parse_chat(_without(body, "replay", "scope")) if run is None else _again(run)
        player, flights = self._player, self._orchestra.flights
        async with player.book(call, visitor.caller) as booked:
            booking = booked if run is None else self._replaying(booked, run)
            line = Line(send, self._orchestra.timing)
            teller = PageTeller(line, _scope(body.text("scope")))
            heard = _overheard(booking, teller)
            await streamed(player, flights, heard, teller, line, receive)

    def _replaying(self, booking: Booking, run: Run) -> Booking:
        """The booking, conducted as the run was."""
        recorded = Recorded(run)
        for worker in recorded.workers:
            if worker not in booking.pool:
                message = f"The worker '{worker}' of that run is not in the pool any more."
                raise Refusal(409, "conflict", message)
        served = replace(booking.served, conductor=recorded, solver=None, direct=False)
        steps = max((len(flow.workflow) for flow in run.rounds if flow.workflow), default=1)
        limits = replace(
            booking.limits,
            steps=max(steps, booking.limits.steps),
            rounds=max(len(run.rounds), 1),
        )
        return replace(booking, served=served, limits=limits)


async def stored(orchestra: Orchestra, run_id: str, visitor: Visitor) -> Run:
    """The run of that id, if the visitor may see it.

    Raises:
        Refusal: there is none, or its content was not kept.
    """
    run = None if orchestra.store is None else await orchestra.store.get(run_id, visitor.tenant)
    if run is None:
        raise not_found(f"The run '{run_id[:80]}', or its content,")
    return run


def _overheard(booking: Booking, teller: PageTeller) -> Booking:
    """The booking, its conductor seen while it writes."""
    served = booking.served
    if served.conductor is None:
        return booking
    conductor = Overheard(served.conductor, teller.drafted)
    return replace(booking, served=replace(served, conductor=conductor))


def _again(run: Run) -> Call:
    return Call(run.header.model or ULTRA, run.header.question)


def _without(body: Fields, *names: str) -> Fields:
    return Fields({name: value for name, value in body.raw.items() if name not in names})


def _scope(given: str | None) -> str:
    """What the names of a run's panels begin with."""
    return f"{given}-" if given in {"a", "b"} else ""
