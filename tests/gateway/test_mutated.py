"""Ten thousand bent requests by every role: no fault of ours, and nothing told that must not be."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass, replace

import aiohttp
import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Finish, Limits, ToolCall
from batuta.errors import (
    BadRequestError,
    ProviderAuthError,
    ProviderOverloadedError,
    RateLimitError,
)
from batuta.gateway.serving.models import embedding_models
from batuta.store import Store
from gateway.keyed_server import ADMIN, HELLO, KeyedServer
from gateway.mutations import ROLES, Sent, good, requests
from gateway.test_embeddings import VEC
from gateway.test_moderation import Judge

pytestmark = pytest.mark.anyio

PROVIDER_KEY = "sk-upstream-0123456789abcdefghijkl"
UPSTREAM = "upstream.internal.example"
MARK = "what-only-the-other-tenant-may-read"
ABREAST = 8
OURS = ("upstream_error", "wrong_form", "no_tool_call", "deadline_exceeded", "overloaded")
"""Codes of a 5xx that is a worker's, or the caller's own deadline's."""
NOT_THERE = (
    "/v1/admin/approvals/",  # no plan waits
    "/ui/sign-in",
    "/ui/learning/",
    "/ui/oidc/",
    "/ui/own-keys",
    "/v1/admin/tenants/nobody",
)
"""What this server does not have; a key that is wrong."""
CODES = re.compile(rb'"code": ?"(\w+)"')
TRACE = re.compile(
    rb"Traceback|File \"|\.py\b|site-packages|batuta\.gateway|sqlalchemy", re.IGNORECASE
)


def failing():
    """A worker whose provider tells more than it should, every time another way."""
    text = f"https://{UPSTREAM}:8443/v1/chat?key=1 refused {PROVIDER_KEY}"
    kinds = (BadRequestError, ProviderAuthError, ProviderOverloadedError, RateLimitError)
    calls = iter(range(10**9))

    def fail(_):
        raise kinds[next(calls) % len(kinds)](text)

    return ScriptedClient(fail)


@dataclass
class Answer:
    status: int
    headers: bytes
    body: bytes


class Village(KeyedServer):
    """A keyed with two tenants, each with something of its own, and a worker that always fails."""

    def __init__(self, store: Store) -> None:
        def say(request):
            formed = request.response_format is not None
            text = MARK if MARK in str(request) else '{"city": "x"}' if formed else "Ok."
            reply, choice = replace(HELLO, text=text), request.tool_choice
            if not request.tools or choice in {None, "auto", "none"}:
                return reply
            name = request.tools[0].name if choice == "required" else choice
            calls = (ToolCall(id="c", name=name, arguments="{}"),)
            return replace(reply, tool_calls=calls, finish=Finish.TOOL_CALLS)

        def embed(request):
            return replace(HELLO, text="", vectors=((0.5, 1.0),) * len(request.messages))

        said, fails, embeds = ScriptedClient(say), failing(), ScriptedClient(embed)
        super().__init__(store, ("ada", "bob"), background=True, ada=said, bob=said, eve=fails)
        self.moderator = Judge()
        app_state, catalogue = self.serving.app_state, self.serving.app_state.catalogue
        models = (*catalogue.models, *embedding_models((VEC,), Limits().unknown))
        clients = {**catalogue.clients, "vec": embeds}
        catalogue = replace(catalogue, models=models, clients=clients)
        self.serving.app_state = replace(app_state, catalogue=catalogue)

    async def __aenter__(self):
        await self.moderator.__aenter__()
        self.serving.app_state.catalogue.moderation = self.moderator.client()
        return await super().__aenter__()

    async def __aexit__(self, *error):
        try:
            return await super().__aexit__(*error)
        finally:
            await self.moderator.__aexit__(*error)

    async def settle(self) -> None:
        self.keys = {
            "acme": await self.key("acme"),
            "other": await self.key("other"),
            "narrow": await self.key("acme", models=("worker/ada",), workers_deny=("bob",)),
            "admin": ADMIN,
        }
        spare = await self.key("spare")
        acme, other = await self.made("acme", "hi"), await self.made("other", MARK)
        await self.store.flush()
        keys = {"KEY": [spare.split("_")[1], "x"]}
        mine = {word: [*acme[word] * 4, *other[word], "x"] for word in acme} | keys
        theirs = {word: [*other[word] * 4, *acme[word], "x"] for word in acme} | keys
        self.ids = {role: theirs if role == "other" else mine for role in ROLES}
        self.cookies: dict[str, bytes] = {}
        self.tokens: dict[str, bytes] = {}
        for role in ("acme", "other", "admin"):
            self.cookies[role], token = await self.signed_in(self.keys[role])
            self.ids[role] = {**self.ids[role], "TOKEN": [token] * 9 + ["x"]}
            self.tokens[role] = token.encode()
        for role in ROLES:
            self.ids[role] = {"TOKEN": ["x"], **self.ids[role]}
        found = await self.store.keys.list()
        self.secrets = [PROVIDER_KEY, UPSTREAM, ADMIN, *(key.digest.hex() for key in found)]
        texts = (spare, *(text for text in self.keys.values() if text != ADMIN))
        self.secrets += [text.split("_", 2)[2] for text in texts]

    async def signed_in(self, key: str) -> tuple[bytes, str]:
        """The cookie of the page's session of that key, and the token of its forms."""
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(self.serving.url, cookie_jar=jar) as http:

            async def token() -> str:
                async with http.get("/ui/sign-in") as page:
                    found = re.search(r'name="token" value="([^"]+)"', await page.text())
                return found[1] if found else ""

            form = {"key": key, "token": await token()}
            async with http.post("/ui/sign-in", data=form, allow_redirects=False) as response:
                assert response.status == 303, await response.text()
            cookies = "; ".join(f"{one.key}={one.value}" for one in jar)
            return cookies.encode(), await token()

    async def made(self, role: str, text: str) -> dict[str, list[str]]:
        """Responses of that role's, and the ids of what came of them."""
        ids = {word: [] for word in ("RUN", "RESPONSE", "GONE", "LOST", "ITEM", "JOB", "CURSOR")}
        for word in ["RESPONSE"] * 20 + ["GONE"] * 10 + ["JOB"] * 10:
            body = {"model": "worker/ada", "input": text, "background": word == "JOB"}
            _, _, made = await self.ask(self.keys[role], "/v1/responses", json=body)
            ids[word].append(made["id"])
            run = f"run_{made['id'].removeprefix('resp_')}"
            ids["LOST" if word == "JOB" else "RUN"].append(run)
            ids["ITEM"] += [item["id"] for item in made["output"]]
        await self.store.flush()
        _, _, page = await self.ask(self.keys[role], "/v1/runs?limit=9", "GET")
        ids["CURSOR"].append(page["next_cursor"])
        return ids

    def signed(self, role: str, sent: Sent) -> Sent:
        """The request as somebody in that role sends it."""
        if any(name == b"authorization" for name, _ in sent.headers) or role == "none":
            return sent
        if sent.place.startswith("/ui/") and role in self.cookies:
            if any(name == b"cookie" for name, _ in sent.headers):
                return sent
            own = ((b"cookie", self.cookies[role]), (b"x-token", self.tokens[role]))
            return replace(sent, headers=(*sent.headers, *own))
        key = self.keys.get(role, f"{self.keys['acme'][:-4]}AAAA")
        return replace(sent, headers=(*sent.headers, (b"authorization", f"Bearer {key}".encode())))

    async def send(self, sent: Sent) -> Answer | None:
        """What comes back; None if nothing does, since the sender hung up."""
        reader, writer = await asyncio.open_connection(*self.serving.url[7:].split(":"))
        try:
            writer.write(sent.raw())
            if sent.cut:
                writer.write_eof()
            data = await reader.read()
        except ConnectionError:
            data = b""
        finally:
            writer.close()
        head, _, body = data.partition(b"\r\n\r\n")
        if not head:
            assert sent.cut or len(sent.raw()) > 60_000, "no answer"
            return None
        return Answer(int(head.split()[1]), head, body)

    def judge(self, role: str, sent: Sent, answer: Answer) -> None:
        """Nothing, if the answer may be told to whoever has that role.

        Raises:
            AssertionError: it says too much, or says what is wrong in another form than ours.
        """
        whole = answer.headers + answer.body
        for secret in self.secrets:
            assert secret.encode() not in whole, f"{secret[:8]} was told"
        if role not in {"other", "admin"}:
            assert MARK.encode() not in whole, "another tenant's text was told"
        if not sent.place.startswith("/ui/"):
            assert not TRACE.search(whole), "a trace of our code was told"
        if answer.status < 400:
            return
        codes = {code.decode() for code in CODES.findall(answer.body)}
        assert answer.status < 500 or codes & {*OURS}, "a fault of ours"
        if sent.method != "HEAD" and not sent.place.startswith("/ui"):
            check_form(sent, answer)


def check_form(sent: Sent, answer: Answer) -> None:
    """An error's body has the form of the dialect that was spoken."""
    assert b"content-type: application/json" in answer.headers
    body = json.loads(answer.body)
    theirs = sent.place == "/v1/messages" or sent.place.startswith("/v1/messages/")
    if theirs and "type" in body:
        assert body["type"] == "error" and {"type", "message"} <= set(body["error"])
        return
    assert not theirs or b"Invalid HTTP" in answer.body, "not in Anthropic's form"
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["code"]


async def check(store: Store, first: int, count: int, caplog) -> None:
    """Sends that many, eight at a time; what must never be said or logged is not."""
    caplog.set_level(logging.INFO)
    async with Village(store) as village:
        await village.settle()
        statuses: list[int] = []
        wrong: list[str] = []

        async def some() -> None:
            for number, (role, plain) in waiting:
                sent = village.signed(role, plain)
                answer = None
                try:
                    with anyio.fail_after(60):
                        answer = await village.send(sent)
                    if answer is not None:
                        statuses.append(answer.status)
                        village.judge(role, sent, answer)
                except (AssertionError, TimeoutError, ValueError) as error:
                    told = f"request {number} by {role}, {sent.bent}: {error!r}"
                    wrong.append(f"{told}\n{sent.raw()[:1000]!r}\n{answer}"[:3000])

        waiting = enumerate(requests(first, count, village.ids), first)
        async with anyio.create_task_group() as tasks:
            for _ in range(ABREAST):
                tasks.start_soon(some)
        assert not wrong, "\n".join(wrong[:9])
        assert len(statuses) > 0.9 * count
        assert {200, 400, 401, 403, 404, 405, 415, 429, 431, 502} <= set(statuses)
        for role in ("acme", "other", "narrow", "admin"):  # nobody was locked out on the way
            assert (await village.ask(village.keys[role], "/v1/models", "GET"))[0] == 200
    faults = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]
    assert not faults, faults[0].getMessage()
    assert not [s for s in village.secrets if s in caplog.text]


async def test_what_is_bent_is_good_before(store):
    async with Village(store) as village:
        await village.settle()
        for role, plain in good(village.ids):
            answer = await village.send(village.signed(role, plain))
            bad = b"worker/eve" in plain.body or plain.place.startswith(NOT_THERE)
            bad |= plain.place.startswith("/ui/keys/") and plain.place.endswith("/rotate")
            assert (answer.status < 400) != bad, (plain.place, answer)
            village.judge(role, plain, answer)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
async def test_bent_requests(store, caplog):
    await check(store, 0, 2_000, caplog)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_thousand_bent_requests(store, caplog):
    await check(store, 2_000, 10_000, caplog)
