"""docs/sign-in.md, tried: its settings serve, its sentences are said, and a browser signs in by a provider on the loopback."""

import os
import re
from functools import partial

import pytest
from anyio.to_thread import run_sync

pytest.importorskip("authlib", reason="authlib is not installed: pip install 'batuta-llm[oidc]'")
from batuta.config.settings import OidcSetting, Settings
from batuta.config.settings_file import read_settings
from docs.shell import ROOT, free_port, shell_blocks
from fakes.identity_provider import IdentityProvider
from fakes.serving import Server
from gateway.ui.conftest import chromium

pytestmark = pytest.mark.anyio
PAGE = ROOT / "docs" / "sign-in.md"
TEXT = PAGE.read_text(encoding="utf-8")
(SETTINGS,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
POOL = '[[workers]]\nid = "ada"\nprovider = "compatible"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "ada"\n\n'
SAID = (
    "src/batuta/gateway/access/oidc.py",
    "src/batuta/gateway/assemble.py",
)
ADMIN = {"sub": "1", "email": "root@example.com", "email_verified": True}
USER = {"sub": "2", "email": "eve@example.com", "email_verified": True, "groups": ["staff"]}
GUEST = {"sub": "3", "email": "guest@example.com", "email_verified": True, "groups": ["guests"]}
UNVERIFIED = {"sub": "4", "email": "root@example.com", "groups": []}


def test_the_settings_are_settings_and_all_of_them(tmp_path):
    path = tmp_path / "batuta.toml"
    path.write_text(POOL + SETTINGS)
    found = read_settings(path, Settings).oidc
    assert found is not None and found.admins == ("batuta-admins", "root@example.com")
    assert found.model_fields_set == set(OidcSetting.model_fields)


def test_each_sentence_of_the_table_is_one_that_is_said():
    source = " ".join((ROOT / path).read_text() for path in SAID)
    source = source.replace("{variable}", "BATUTA_OIDC_SECRET").replace("{hint}", "…")
    table = TEXT.partition("## 6. What goes wrong")[2]
    sentences = [
        cell.strip("` ").removesuffix(" (503)").removesuffix(" (403)").rstrip(".…: ")
        for cell in re.findall(r"^\| ([^|]+) \| [^|]+ \|", table, re.MULTILINE)
        if "page says" not in cell and cell.strip("- ") and cell != "sentence"
    ]
    assert len(sentences) >= 12
    for sentence in sentences:
        assert sentence in source or sentence[0].lower() + sentence[1:] in source, sentence


@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_a_browser_signs_in_by_the_provider_and_keys_are_changed(tmp_path, command_line):
    playwright = pytest.importorskip("playwright.async_api")
    port = free_port()
    here = f"http://127.0.0.1:{port}"
    async with IdentityProvider(back=f"{here}/ui/oidc/callback") as provider:
        settings = SETTINGS.replace("https://id.example.com", provider.issuer)
        path = tmp_path / "batuta.toml"
        path.write_text(POOL + settings.replace("https://batuta.example.com", here))
        secret = tmp_path / "secret"
        secret.write_text(provider.secret)
        environ = {"BATUTA_OIDC_SECRET_FILE": str(secret), "BATUTA_SECRET": "x" * 32}
        options = ("--pool", str(path), "--port", str(port))
        async with Server(tmp_path, *options, **environ), playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(
                executable_path=chromium(), args=["--no-sandbox"]
            )
            visits = Visits(browser, here, provider)
            await visits.sign_in(ADMIN, ends="Continue")
            screens = await visits.page.locator("nav a").all_inner_texts()
            assert "Audit" in screens and "Keys" in screens
            await visits.page.click("nav >> text=Audit")
            await visits.page.get_by_text("sign_in").first.wait_for()
            await visits.sign_in(UNVERIFIED, says="You may not sign in here.")
            await visits.sign_in(GUEST, says="You may not sign in here.")
            provider.refuses = True
            await visits.sign_in(USER, says="The identity provider refused.")
            provider.refuses = False
            provider.claims = {"nonce": "another"}
            await visits.sign_in(USER, says="The identity provider's token is not valid.")
            provider.claims = {}
            right, provider.secret = provider.secret, "another"
            await visits.sign_in(USER, says="The identity provider gave no token.")
            provider.secret = right
            await visits.sign_in(USER, ends="Continue")
            screens = await visits.page.locator("nav a").all_inner_texts()
            assert "Your keys" in screens and not {"Audit", "Keys"} & set(screens)
            await visits.page.click("nav >> text=Your keys")
            await visits.page.fill("input[name=name]", "ci")
            await visits.page.click("text=Make a key")
            key = await visits.page.inner_text("[data-secret]")
            asked = await visits.page.request.get(
                f"{here}/v1/models", headers={"authorization": f"Bearer {key}"}
            )
            assert asked.status == 200
            await revoke_by_the_page(command_line, tmp_path, environ)
            await visits.page.goto(f"{here}/ui/runs")
            assert "/ui/sign-in" in visits.page.url, "the session has ended with the entry"
            await browser.close()


class Visits:
    """A person at the page, in a new browser each time."""

    def __init__(self, browser, url, provider):
        self.browser, self.url, self.provider = browser, url, provider

    async def sign_in(self, person, *, ends="", says=""):
        """What is done under "What people see"; it ends there, or with that sentence."""
        self.provider.person = person
        self.page = await (await self.browser.new_context()).new_page()
        self.page.set_default_timeout(90_000)
        await self.page.goto(f"{self.url}/ui/runs")
        await self.page.click("text=Sign in with Example")
        if says:
            assert await self.page.inner_text("#problem") == says
        if ends:
            assert await self.page.inner_text("h1") == "Signed in"
            await self.page.click(f"text={ends}")
            await self.page.wait_for_url("**/ui/runs")
            await self.page.wait_for_selector("nav a")


async def revoke_by_the_page(command_line, folder, environ):
    """The commands of "Try it", with the user's id in the place of `3fa9c1`."""
    commands = [
        line.partition("#")[0].split()[1:] for line in shell_blocks(PAGE).strip().splitlines()
    ]
    env = {**os.environ, **environ, "BATUTA_HOME": str(folder / "home"), "COLUMNS": "300"}
    user, listed = "", ""
    for command in commands:
        words = [user if word == "3fa9c1" else word for word in command]
        done = await run_sync(partial(command_line.run, *words, cwd=folder, env=env))
        assert done.returncode == 0, done.stderr
        listed = listed or done.stdout
        user = re.search(r"^(\w+) .*eve@example.com", listed, re.MULTILINE)[1]
    assert "root@example.com" in listed
