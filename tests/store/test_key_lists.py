"""Keys and tenants a page at a time, and spending added up, in both databases."""

from dataclasses import replace
from decimal import Decimal
from functools import partial

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, update

from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.models import KEYS, LEDGER
from batuta.store.spend_report import report_spending

pytestmark = pytest.mark.anyio


async def pages(read, cursor, size):
    """Every page of a list, by following its cursors."""
    after = None
    while page := await read(after):
        assert len(page) <= size
        yield page
        after = cursor(page[-1])


async def test_pages_of_keys_are_the_whole_list_once(target):
    hasher = KeyHasher(b"x" * 32)
    async with Store(target) as store:
        made = [
            (await store.keys.create(hasher, f"t{number % 2}", "n"))[0].id for number in range(11)
        ]
        # Made in the same moment: then the ids decide.
        await store.database.execute(
            update(KEYS).where(KEYS.c.id.in_(made[3:9])).values(created=5.0)
        )
        for tenant in (None, "t0"):
            whole = await store.keys.list(tenant)
            paged = [
                key
                async for page in pages(
                    lambda after, tenant=tenant: store.keys.list(tenant, limit=4, after=after),
                    lambda key: key.cursor,
                    4,
                )
                for key in page
            ]
            assert paged == whole
            assert [(key.created, key.id) for key in whole] == sorted(
                ((key.created, key.id) for key in whole), reverse=True
            )
        assert len(await store.keys.list("t0")) == 6
        for bad in ("x", "_", "x_y", "1", "nan_x", "inf_x"):
            with pytest.raises(ValueError, match=r"cursor|float"):
                await store.keys.list(after=bad)
        assert await store.keys.list(after="1_\0") == []


async def test_pages_of_tenants_are_all_of_them_once(target):
    async with Store(target) as store:
        for number in range(7):
            await store.keys.set_tenant_budget(f"t{number}", None, None)
        paged = [
            tenant
            async for page in pages(
                lambda after: store.keys.tenants(limit=3, after=after), lambda one: one.name, 3
            )
            for tenant in page
        ]
        assert paged == await store.keys.tenants()
        assert len(paged) >= 7


MONEY = st.decimals(0, 1000, places=12)


def test_spending_is_added_up_to_the_last_digit(target):
    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from("ab"), MONEY, MONEY), min_size=1, max_size=8))
    def law(lines):
        anyio.run(check, lines)

    async def check(lines):
        async with Store(target) as store:
            await store.database.execute(delete(LEDGER))
            for number, (tenant, usd, assumed) in enumerate(lines):
                row = {
                    "run_id": f"run_{number // 2}",
                    "line": number,
                    "tenant": tenant,
                    "day": "2026-11-20",
                    "at": 1.0,
                    "model": "m",
                    "kind": "worker",
                    "name": "w",
                    "usd": usd,
                    "assumed_usd": assumed,
                    **dict.fromkeys(
                        ("calls", "input_tokens", "output_tokens", "estimated_calls"), number
                    ),
                    "unpriced_calls": 1,
                }
                await store.database.execute(insert(LEDGER).values(row))
            found = await report_spending(store.database, ("tenant",), since="2026-11-20")
            assert await report_spending(store.database, ("tenant",), since="2026-11-21") == []
        for each in found:
            own = [(number, line) for number, line in enumerate(lines) if line[0] == each.group[0]]
            assert each.cost.usd == sum((line[1] for _, line in own), Decimal(0))
            assert each.assumed_usd == sum((line[2] for _, line in own), Decimal(0))
            assert each.calls == sum(number for number, _ in own)
            assert each.cost.unpriced_calls == len(own)
            assert each.runs == len({number // 2 for number, _ in own})
        assert {each.group[0] for each in found} == {line[0] for line in lines}

    law()


async def test_many_who_make_keys_at_once_pass_no_limit_of_their_user(target):
    hasher, most, refused = KeyHasher(b"x" * 32), 5, []
    async with Store(target) as one, Store(target) as two:
        user = await one.keys.enter_user(
            hasher, "eve", "eve", tenant="t", is_admin=False, permissions=KeyPermissions()
        )

        async def make(store):
            try:
                await store.keys.create(hasher, "t", "n", user=user.id, most_of_user=most)
            except ValueError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(make, (one, two)[number % 2])
        made = await one.keys.list_of_user(user.id, 100)
        assert (len(made), len(refused)) == (most, 24 - most)
        assert set(refused) == {"you may have 5 active keys: revoke one first"}
        await one.keys.revoke(made[0].id)
        await make(two)
        await make(one)
        assert len(refused) == 25 - most


async def test_a_user_who_comes_back_is_recorded_with_the_tenant_of_the_entry(target):
    hasher = KeyHasher(b"x" * 32)
    async with Store(target) as store:
        for tenant in ("first", "second"):
            user = await store.keys.enter_user(
                hasher, "eve", "eve", tenant=tenant, is_admin=False, permissions=KeyPermissions()
            )
            assert user.tenant.name == "first"
        assert {record.tenant for record in await store.audit.list(2)} == {"first"}


async def test_a_name_of_a_key_is_one_line_of_a_bounded_length(target):
    hasher = KeyHasher(b"x" * 32)
    limits = {"tenant": "t", "is_admin": False, "permissions": KeyPermissions()}
    async with Store(target) as store:
        key, _ = await store.keys.create(hasher, "t", " a\nkey_0000\tt\x1ealice\u2028active ")
        assert key.name == "a key_0000 t alice active"
        changed = await store.keys.change(key.id, name="b\r\nc")
        assert changed is not None and changed.name == "b c"
        user = await store.keys.enter_user(hasher, "who", "Ann\nkey_0000" + "x" * 500, **limits)
        assert user.name.startswith("Ann key_0000x") and len(user.name) == 200
        for name in ("", " \n", "x" * 201):
            with pytest.raises(ValueError, match="a key needs a name"):
                await store.keys.create(hasher, "t", name)
            with pytest.raises(ValueError, match="a key needs a name"):
                await store.keys.change(key.id, name=name)


async def test_replicas_that_change_one_key_at_once_lose_no_change(target):
    hasher = KeyHasher(b"x" * 32)
    async with Store(target) as one, Store(target) as other:
        key, issued = await one.keys.create(hasher, "t", "k")
        texts = [issued.text]

        async def change(store, **limit):
            await store.keys.change(key.id, lambda before: replace(before, **limit))

        async def rotate(store):
            texts.append((await store.keys.rotate(hasher, key.id, 60.0))[1].text)

        for number in range(1, 6):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(change, one, rpm=number))
                tasks.start_soon(partial(change, other, tpm=number))
                tasks.start_soon(rotate, one)
                tasks.start_soon(rotate, other)
            found = await one.keys.find(key.id)
            assert (found.permissions.rpm, found.permissions.tpm) == (number, number)
            last = {hasher.digest(text) for text in texts[-2:]}
            assert {found.digest, found.old_digest} == last
