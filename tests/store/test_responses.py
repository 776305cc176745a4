"""Responses are read as they were put, by their own tenant, with those that they go on from."""

from dataclasses import replace

import pytest

from batuta.store import Store
from batuta.store.responses import StoredResponse

pytestmark = pytest.mark.anyio

FIRST = StoredResponse(
    id="resp_1",
    tenant="a",
    created=1.5,
    status="queued",
    previous=None,
    body=b'{"n":1}',
    input=b"[1]",
)


@pytest.fixture
async def responses(anyio_backend, tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        yield store.responses


async def test_a_response_is_read_as_it_was_put_and_put_again(responses):
    await responses.put(FIRST)
    assert await responses.get("resp_1", "a") == FIRST
    later = replace(FIRST, status="completed", body=b"{}", events=b"\0\xff")
    await responses.put(later)
    assert await responses.get("resp_1", "a") == later


async def test_another_tenants_response_does_not_exist(responses):
    await responses.put(FIRST)
    await responses.put(replace(FIRST, tenant="b", body=b"b's"))
    assert await responses.get("resp_1", "c") is None
    assert not await responses.delete("resp_1", "c")
    assert await responses.get_thread("resp_1", "c", 9) == []
    assert await responses.delete("resp_1", "a")
    assert (await responses.get("resp_1", "b")).body == b"b's"


async def test_a_thread_is_oldest_first_bounded_and_the_tenants_own(responses):
    older = [replace(FIRST, id=f"resp_{n}", previous=f"resp_{n - 1}") for n in range(2, 6)]
    rows = [FIRST, *older]
    for row in rows:
        await responses.put(replace(row, events=b"e"))
        await responses.put(replace(row, tenant="b", previous=None))
    assert await responses.get_thread("resp_5", "a", 9) == rows
    assert await responses.get_thread("resp_5", "a", 2) == rows[3:]
    assert [row.id for row in await responses.get_thread("resp_5", "b", 9)] == ["resp_5"]


async def test_a_thread_that_bites_its_tail_ends(responses):
    await responses.put(replace(FIRST, previous="resp_1"))
    assert len(await responses.get_thread("resp_1", "a", 7)) == 7


async def test_deleting_twice_tells(responses):
    await responses.put(FIRST)
    assert await responses.delete("resp_1", "a")
    assert not await responses.delete("resp_1", "a")
    assert await responses.get("resp_1", "a") is None


async def test_odd_text_is_stored(responses):
    odd = replace(FIRST, id="resp_\0\ud800", status="failed")
    await responses.put(odd)
    assert (await responses.get("resp_\0\ud800", "a")).status == "failed"
