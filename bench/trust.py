"""What trust costs a keyed request: variants of one server, in turns, in one process.

    python bench/trust.py              # CPU
    python bench/trust.py --count      # instructions of Python and calls of C functions: the same on any machine, however busy

Each variant is a whole server on loopback with keys and a store, over a worker that answers at once; CPU is that of the
process, the client's part included, which is the same for all. The variants take turns, in an order that is drawn anew
each time; told is the median over the turns of each one's CPU by that of the plain server in the same turn, with an interval of 95 %
(bootstrap), and the records that the audit trail got while they were measured.

Counted are, of each request in all threads, the instructions that Python's interpreter executes, and of them those in the modules of the trust
features. Told is the median of the requests by the plain server's, with an interval of 95 % (bootstrap), and the fewest
instructions of any request, which nothing else in the process has added to.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batuta.clients import ScriptedClient
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.failed_sign_ins import AuditKeeper
from batuta.guardrails import GroundedAction, GroundedPolicy, Guardrails
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import PlanRule, PlanRules
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, Serving, pool_of, scripted_state
from instructions import InstructionCounter

WARM = 20
"""Requests before any is counted."""
COUNTED = 400
VERDICT = json.dumps({"verdicts": [{"claim": 1, "supported": "yes", "where": [1]}]})


def variants():
    """The options of each variant's server; `keeper`: the trail's own task runs beside it."""
    eve = pool_of("ada", "eve")["eve"]
    policy = GroundedPolicy(name="sources", worker=eve, action=GroundedAction.MARK)
    other = PlanRule(name="two-eyes", tag="ledger", needs_check=True)
    return {
        "plain": {},
        "plain, again": {},
        "audit trail": {"keeper": True},
        "approvals and rules for other questions": {
            "approvals": (ApprovalRule(name="four-eyes", tag="ledger"),),
            "plan_rules": PlanRules((other,)),
        },
        "each answer checked against its sources": {"guardrails": Guardrails((), policy)},
    }


async def open_server(stack, folder, keeper=False, **options):
    """Return a function that sends one request with a key, and the server's store."""
    store = await stack.enter_async_context(Store.open(folder / "runs.db"))
    hasher = KeyHasher(b"x" * 32)
    gate = Authenticator(store, hasher, ADMIN)
    clients = {"ada": ScriptedClient(lambda _: "You said hi."), "eve": ScriptedClient(lambda _: VERDICT)}  # fmt: skip
    state = scripted_state(clients, store=store, authenticator=gate, **options)
    _, issued = await store.keys.create(hasher, "acme", "k", KeyPermissions())
    serving = await stack.enter_async_context(Serving(state))
    if keeper:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(AuditKeeper(store, gate.failed_sign_ins, 400).work)
    body = {"model": "worker/ada", "messages": HI}
    headers = {"authorization": f"Bearer {issued.text}"}

    async def ask():
        status, _, said = await serving.post("/v1/chat/completions", json=body, headers=headers)
        assert status == 200, said

    return ask, store


async def count_records(store):
    """The records of the audit trail."""
    return (await store.audit.verify()).records


FEATURES = (
    "engine/approval", "engine/confidence", "engine/grounding", "engine/plan_check", "guardrails/grounded", "language/approval_rules",
    "language/grounding", "language/plan_rules", "store/audit", "store/approvals", "config/confidence", "access/failed_sign_ins",
    "gateway/admin",
)  # fmt: skip
"""Where the modules of the trust features are."""


async def count(requests):
    """Print the table of instructions."""
    print("| server | instructions of a request | beside the plain one (95 %) | the fewest | in the features' modules |")  # fmt: skip
    print("|---|---|---|---|---|")
    await count_variant({}, requests)  # what is made once in a process
    plain = None
    for name, options in variants().items():
        found = await count_variant(options, requests)
        whole = [each for each, _ in found]
        own = statistics.mean(own for _, own in found)
        plain = plain or whole
        draw = random.Random(1)
        drawn = sorted(
            statistics.median(draw.choices(whole, k=len(whole)))
            / statistics.median(draw.choices(plain, k=len(plain)))
            for _ in range(1000)
        )
        middle = statistics.median(whole)
        ratio = middle / statistics.median(plain)
        print(f"| {name} | {middle:,.0f} | {ratio:.4f} ({drawn[25]:.4f} to {drawn[974]:.4f}) | {min(whole):,} | {own:,.0f} |", flush=True)  # fmt: skip


async def count_variant(options, requests, warm=WARM):
    """The instructions of each request to such a server: all, and those in the features' modules."""
    found, counter = [], InstructionCounter()
    async with AsyncExitStack() as stack:
        stack.enter_context(counter.install())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ask, _ = await open_server(stack, folder, **options)
        for number in range(warm + requests):
            counter.start()
            await ask()
            counts = counter.stop()
            if number >= warm:
                own = sum(n for file, n in counts.items() if any(each in file for each in FEATURES))
                found.append((counts.total(), own))
    return found


async def measure(turns, requests):
    """Print the table."""
    spent = {name: [] for name in variants()}
    async with AsyncExitStack() as stack:
        servers = {}
        for number, (name, options) in enumerate(variants().items()):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / str(number)
            folder.mkdir()
            servers[name] = await open_server(stack, folder, **options)
        before = {name: await count_records(store) for name, (_, store) in servers.items()}
        for turn in range(turns + 1):
            order = list(servers)
            random.Random(turn).shuffle(order)
            for name in order:
                began = time.process_time()
                for _ in range(requests):
                    await servers[name][0]()
                if turn:  # the first one warms up
                    spent[name].append((time.process_time() - began) / requests)
        after = {name: await count_records(store) for name, (_, store) in servers.items()}
    print("| server | CPU of a request | beside the plain one (95 %) | audit records |")
    print("|---|---|---|---|")
    for name, seconds in spent.items():
        ratios = [one / plain for one, plain in zip(seconds, spent["plain"], strict=True)]
        draw = random.Random(1)
        drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
        low, middle, high = drawn[25], statistics.median(ratios), drawn[974]
        print(f"| {name} | {statistics.median(seconds) * 1e6:.0f} µs | {middle:.3f} ({low:.3f} to {high:.3f}) | {after[name] - before[name]} |")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--count", action="store_true", help="instructions in place of CPU")
    given = parser.parse_args()
    if given.count:
        anyio.run(count, COUNTED)
    else:
        anyio.run(measure, given.turns, given.requests)
