"""Limits of a tenant hold for requests at the same time, on both databases."""

from time import time

import anyio
import pytest

from batuta.store import Store
from batuta.store.approvals import MAX_WAITING, ApprovalError, PendingPlan
from batuta.store.files import FileQuotaError, StoredFile

pytestmark = pytest.mark.anyio


async def count_refused(store, call, error, number):
    """Makes that many calls at once; returns how many of them were refused with the error."""
    refused = []

    async def one(index):
        try:
            await call(store, index)
        except error:
            refused.append(index)

    async with anyio.create_task_group() as tasks:
        for index in range(number):
            tasks.start_soon(one, index)
    return len(refused)


async def upload(store, index):
    file = StoredFile(
        id=f"file-{index}", tenant="acme", name="a.txt", media_type="text/plain", purpose="user_data",
        created=time(), expires=None, size=1,
    )  # fmt: skip
    await store.files.put(file, b"x", text=None, fault="", most_files=3, most_bytes=100)


async def ask(store, index):
    plan = PendingPlan(
        id=f"run_{index}:1", run_id=f"run_{index}", tenant="acme", rule="r", digest="d", plan="p",
        usd="1", state="waiting", created=time(), expires=time() + 600,
    )  # fmt: skip
    await store.approvals.ask(plan)


async def test_files_that_are_uploaded_at_once_stay_within_the_quota(target):
    async with Store(target) as store:
        assert await count_refused(store, upload, FileQuotaError, 12) == 9
        assert len(await store.files.list("acme")) == 3


async def test_plans_that_are_asked_about_at_once_stay_within_the_limit(target):
    async with Store(target) as store:
        assert await count_refused(store, ask, ApprovalError, MAX_WAITING + 12) == 12
        assert len(await store.approvals.list()) == MAX_WAITING
