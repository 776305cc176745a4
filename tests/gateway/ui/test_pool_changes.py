"""The admin's changes of the pool, on a server that was put together from a settings file."""

from contextlib import asynccontextmanager

import aiohttp
import pytest

from fakes.server import KEY
from gateway.live_server import Serving
from gateway.ui.edited_pool import HASHER, KEY_VARIABLE, EditedPool
from gateway.ui.page_server import ADMIN
from gateway.ui.visitors import sign_in, token_of


@asynccontextmanager
async def opened(folder, monkeypatch):
    """A server of two workers of one fake provider, with a browser of the admin's."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with EditedPool.open(folder) as pool, Serving(pool.state) as server:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(server.url, cookie_jar=jar) as browser:
            await sign_in(browser, ADMIN)
            yield PoolVisit(browser, pool.path, pool.store, pool.provider)


class PoolVisit:
    """The admin before the pool's screen."""

    def __init__(self, browser, path, store, provider):
        self.browser, self.path, self.store, self.provider = browser, path, store, provider

    async def post(self, address, **form):
        form["token"] = await token_of(self.browser, "/ui/pool")
        async with self.browser.post(
            f"/ui/{address}", data=form, allow_redirects=False
        ) as response:
            return response.status, await response.text()

    async def page(self):
        async with self.browser.get("/ui/pool") as response:
            assert response.status == 200
            return await response.text()

    async def acts(self):
        return [(each.action, each.subject) for each in await self.store.audit.list(20)]


async def test_a_worker_is_added_tested_priced_and_switched_off(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as admin:
        before = admin.path.read_text()
        new = {"id": "cy", "model": "gpt-cy", "base_url": admin.provider.url, "key_env": "POOL_KEY"}
        assert (await admin.post("pool", **new, description="Quick.", input="2", output="4"))[
            0
        ] == 303
        assert admin.path.read_text().startswith(before), "all that was there stays as it was"
        assert "Quick." in await admin.page()
        assert (await admin.post("pool/test/cy"))[0] == 303
        page = await admin.page()
        assert "answered in" in page and "tokens, $0.0" in page
        assert KEY not in page and KEY not in admin.path.read_text()
        card = {"description": 'A "better" one', "tags": "vision", "input": "3", "output": "5.5"}
        assert (await admin.post("pool/card/cy", **card))[0] == 303
        assert "3 in, 5.5 out" in await admin.page()
        assert (await admin.post("pool/off/cy"))[0] == 303
        assert "switched off" in await admin.page()
        assert (await admin.post("pool/test/cy"))[0] == 404
        assert (await admin.post("pool/on/cy"))[0] == 303
        assert (await admin.post("pool/test/cy"))[0] == 303
        for _ in range(4):  # on, off, card, added
            assert (await admin.post("pool-undo"))[0] == 303
        assert admin.path.read_text() == before
        assert (await admin.post("pool-undo"))[0] == 409
        found = await admin.acts()
        assert ("pool.changed", "cy") in found and ("pool.tested", "cy") in found


async def test_a_card_keeps_what_its_form_does_not_change(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as admin:
        described = admin.path.read_text().replace(
            "price = { input = 1, output = 2 }",
            'description = """\nFirst line.\nSecond.\n"""\ntags = ["eu west", "b"]\n'
            "price = { input = 1.50, output = 2, cached = 0.1, call = 0.25 }",
        )
        admin.path.write_text(described)
        card = {"description": "First line.\r\nSecond.", "tags": "eu west b"}
        same = {**card, "input": "1.5", "output": "2"}
        assert (await admin.post("pool/card/ada", **same))[0] == 303
        assert admin.path.read_text() == described
        assert (await admin.post("pool/card/ada", **{**same, "output": "3"}))[0] == 303
        written = described.replace("1.50, output = 2, ", "1.5, output = 3, ", 1)
        assert admin.path.read_text() == written
        assert "1.5 in, 3 out, 0.25 a call" in await admin.page()


async def test_what_cannot_be_served_changes_nothing(tmp_path, monkeypatch):
    async with opened(tmp_path, monkeypatch) as admin:
        before = admin.path.read_text()
        fine = {"id": "cy", "model": "m", "base_url": admin.provider.url}
        for change, status, said in (
            ({"key_env": KEY}, 400, "not the key"),
            ({"base_url": "http://me:secret@127.0.0.1/v1"}, 400, "must not contain a key"),
            ({"id": "no name"}, 400, "letters"),
            ({"id": "ada"}, 409, "there is a worker ada already"),
            ({"input": "2"}, 400, "both parts"),
            ({"input": "much", "output": "1"}, 400, "dollars per million tokens"),
            ({"provider": "nobody"}, 409, "nothing was changed"),
            ({"key_env": "NOT_THERE"}, 409, "NOT_THERE"),
        ):
            found = await admin.post("pool", **{**fine, **change})
            assert found[0] == status, (change, found[1][-800:])
            assert said in found[1], change
            assert admin.path.read_text() == before
        assert (await admin.post("pool/off/ada"))[0] == 303
        found = await admin.post("pool/off/bob")
        assert found[0] == 409 and "every worker is switched off" in found[1]
        admin.path.write_text(admin.path.read_text() + "# by hand\n")
        found = await admin.post("pool-undo")
        assert found[0] == 409 and "changed elsewhere in the meantime" in found[1]


@pytest.mark.parametrize("address", ["pool", "pool/off/ada", "pool/test/ada", "pool-undo"])
async def test_nobody_but_the_admin_changes_the_pool(tmp_path, monkeypatch, address):
    async with opened(tmp_path, monkeypatch) as admin:
        before = admin.path.read_text()
        _, issued = await admin.store.keys.create(HASHER, "acme", "tests")
        url = admin.browser._base_url
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(url, cookie_jar=jar) as tenant:
            await sign_in(tenant, issued.text)
            visit = PoolVisit(tenant, admin.path, admin.store, admin.provider)
            assert (await visit.post(address))[0] == 404
            assert "Change the pool" not in await visit.page()
        async with admin.browser.post(f"/ui/{address}", data={"token": "x"}) as response:
            assert response.status == 403
        assert admin.path.read_text() == before
