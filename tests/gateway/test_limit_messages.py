"""The sentences about a limit or a policy say what was needed, what is left, and the names as set."""

from dataclasses import replace
from decimal import Decimal

import pytest

from batuta.conductors.sessions.state import NEW_SESSION, NEW_THREAD
from batuta.core import Outcome
from batuta.errors import LimitReachedError, StoreError
from batuta.gateway.serving.error_mapping import error_of_run
from batuta.gateway.serving.reserved_budget import ReservedBudget
from batuta.gateway.serving.session_call import SessionCall
from batuta.gateway.serving.session_funds import SessionFunds
from batuta.gateway.serving.tenant_memory import LocalSessions
from batuta.store.ledger import Bucket, BudgetStatus, Reservation
from store.strategies import make_run

pytestmark = pytest.mark.anyio
CENT = 10**7  # billionths of a dollar
BUCKET = Bucket("key:k1", "2026-11-21", 100 * CENT)
HELD = Reservation(id="r", nano=10 * CENT, buckets=(BUCKET,))


class Refusing:
    """Budgets that refuse to grow a reservation."""

    def __init__(self, error=None):
        self.error = error

    async def grow(self, reservation, more, enough):
        if self.error is not None:
            raise self.error
        return BudgetStatus(BUCKET, 70 * CENT, 25 * CENT, holders=2)


async def sentence_of(funds, usd):
    with pytest.raises(LimitReachedError) as raised:
        await funds.raise_to(Decimal(usd), Decimal(usd))
    return str(raised.value)


async def test_an_exhausted_budget_says_what_is_needed_and_what_is_left():
    budget = ReservedBudget(Refusing(), HELD)  # pyright: ignore[reportArgumentType]
    assert await sentence_of(budget, "0.30") == (
        "the limit on usd was reached: the next call may cost $0.20 more, out of $0.050 that the key "
        "has left; $0.15 is held by 1 running request"
    )


async def test_a_budget_that_cannot_be_checked_says_so():
    budget = ReservedBudget(Refusing(StoreError("away")), HELD)  # pyright: ignore[reportArgumentType]
    assert await sentence_of(budget, "0.30") == (
        "the limit on usd was reached: the budget cannot be checked now, so that the next call may "
        "spend none of it"
    )


async def test_a_sessions_limit_says_what_the_next_call_needs_besides_what_is_held():
    call = SessionCall(
        tenant="t",
        id="ses_1",
        thread="",
        before=NEW_THREAD,
        state=NEW_SESSION,
        run="r",
        max_cost_usd=Decimal(1),
    )
    funds = SessionFunds(LocalSessions(), call, None)
    await funds.raise_to(Decimal("0.90"), Decimal("0.90"))
    assert await sentence_of(funds, "1.10") == (
        "the limit on usd was reached: the next call may cost $0.20 more, too much for what is left "
        "of the session's $1.00"
    )


def test_a_policys_name_is_shown_as_it_was_set():
    run = replace(
        make_run(outcome=Outcome.REFUSED),
        error="the policy No-PII forbids this question",
        error_code="policy_blocked",
        reply=None,
        answer=None,
    )
    assert error_of_run(run).message == "The policy No-PII forbids this question."
