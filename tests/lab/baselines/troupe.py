"""A pool of scripted workers whose every call is counted."""

from decimal import Decimal

from batuta.clients import ScriptedClient
from batuta.core import Cost, Pool, Price, Question, Usage, Worker, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.baselines import SolverContext

PRICE = Price(input=Decimal(1), output=Decimal(3))
QUESTION = Question.of("What is six times seven?")
DESCRIPTIONS = (
    "Excellent at arithmetic; weak at planning and checking.",
    "Excellent at planning; fair at arithmetic.",
    "Good at checking and reviewing; weak at arithmetic.",
    "Good at comparing answers; careful with long context.",
    "Fair at everything.",
    "",
    "Weak at planning, checking and comparing.",
)


class Counted:
    """A client that remembers what its calls took, and how many are under way."""

    def __init__(self, inner):
        self.inner = inner
        self.usage = Usage()
        self.cost = Cost()
        self.active = 0

    @property
    def requests(self):
        return self.inner.requests

    async def complete(self, request, listener=NULL_LISTENER):
        self.active += 1
        try:
            reply = await self.inner.complete(request, listener)
        finally:
            self.active -= 1
        self.usage += reply.usage
        self.cost += reply.cost
        return reply


class Troupe:
    """`size` workers, the first the strongest; each says what its script says."""

    def __init__(self, size=7, say=None, latency=0.0):
        self.pool = Pool(
            tuple(
                Worker(
                    id=WorkerId(f"w{n}"),
                    model=f"m{n}",
                    description=DESCRIPTIONS[n],
                    price=PRICE,
                    strength=0.9 - 0.1 * n,
                )
                for n in range(size)
            )
        )
        speaker = say or (lambda worker, request: f"{worker} thinks.\nAnswer: 42")
        self.clients = {
            worker.id: Counted(
                ScriptedClient(lambda r, w=worker.id: speaker(w, r), latency=latency, price=PRICE)
            )
            for worker in self.pool
        }
        self.context = SolverContext(pool=self.pool, clients=self.clients)

    @property
    def usage(self):
        return sum((client.usage for client in self.clients.values()), Usage())

    @property
    def cost(self):
        return sum((client.cost for client in self.clients.values()), Cost())

    @property
    def requests(self):
        return [r for client in self.clients.values() for r in client.requests]


def in_turn(*lines):
    """A script for the whole troupe, used up in the order of the calls."""
    left = iter(lines)
    return lambda worker, request: next(left)
