"""Signing in by an identity provider on the loopback: code and PKCE, nonce, state, signatures."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from decimal import Decimal

import anyio
import pytest

pytest.importorskip("authlib", reason="authlib is not installed: pip install 'batuta-llm[oidc]'")
from joserfc.jwk import ECKey, OctKey, RSAKey

from batuta.clients import HttpTransport, ScriptedClient
from batuta.clients.http_target import Secret
from batuta.errors import ConfigError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.oidc import OidcClient, OidcOptions
from batuta.gateway.ui.own_keys import MAX_OWN_KEYS
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from fakes.identity_provider import BACK, IdentityProvider
from gateway.keyed_server import HELLO
from gateway.live_server import HI, Serving, scripted_state

pytestmark = pytest.mark.anyio
OTHER = RSAKey.generate_key(2048, {"kid": "one"})
THIRD = RSAKey.generate_key(2048, {"kid": "one"})
SHARED = OctKey.generate_key(256, {"kid": "one"})


class Door:
    """A server where people sign in, and a browser."""

    def __init__(self, provider, store, http, *, patience=10.0, **options):
        hasher = KeyHasher(b"x" * 32)
        wanted = {"client_secret": Secret(provider.secret), "redirect_uri": BACK, **options}
        options = OidcOptions(issuer=provider.issuer, client_id="batuta", **wanted)
        gate = Authenticator(store, hasher, has_sign_in=True)
        ada = ScriptedClient(lambda _: HELLO)
        self.store, self.provider, self.hasher = store, provider, hasher
        self.later = 0.0
        """Seconds that have passed for whoever asks the provider."""
        oidc = OidcClient(
            options, http, hasher, lambda: time.monotonic() + self.later, patience=patience
        )
        self.serving = Serving(
            scripted_state(
                {"ada": ada},
                store=store,
                authenticator=gate,
                oidc=oidc,
            )
        )

    async def get(self, path, cookies=None, **options):
        cookie = "; ".join(f"{name}={value}" for name, value in (cookies or {}).items())
        async with self.serving.http.get(
            path, headers={"cookie": cookie}, allow_redirects=False, **options
        ) as answer:
            return answer.status, answer, await answer.text()

    async def start(self, then="/ui/runs"):
        status, answer, _ = await self.get(f"/ui/oidc/start?then={then}")
        assert status == 303, status
        [kept] = answer.headers.getall("set-cookie")
        assert all(w in kept for w in ("HttpOnly", "SameSite=lax", "Secure", "Path=/ui/oidc"))
        return answer.headers["location"], kept.partition("=")[2].partition(";")[0]

    async def sign_in(self, **person):
        """The browser's session; and the page that is shown."""
        url, kept = await self.start()
        back = self.provider.authorize(url, **person)
        return await self.come_back(back, kept)

    async def come_back(self, back, kept):
        status, answer, text = await self.get(
            "/ui/oidc/callback", {"batuta_oidc": kept}, params=back
        )
        cookies = answer.headers.getall("set-cookie", [])
        sessions = [c for c in cookies if c.startswith("batuta_session=")]
        for one in sessions:
            assert all(w in one for w in ("HttpOnly", "SameSite=strict", "Secure"))
        session = sessions[0].partition("=")[2].partition(";")[0] if sessions else None
        return status, session, text


@pytest.fixture
async def provider(anyio_backend):
    async with IdentityProvider() as provider:
        yield provider


@asynccontextmanager
async def door_of(provider, store, **options):
    async with HttpTransport() as http:
        door = Door(provider, store, http, **options)
        async with door.serving:
            yield door


EVE = {"email": "eve@example.com", "email_verified": True, "groups": ["staff"]}


async def test_somebody_signs_in_and_sees_their_tenant(provider, store):
    async with door_of(provider, store, label="Example") as door:
        assert "Sign in with Example" in (await door.get("/ui/sign-in"))[2]
        assert (await door.get("/v1/models"))[0] == 401, "a key is needed from the first moment"
        status, session, text = await door.sign_in(**EVE)
        assert status == 200 and '"/ui/runs"' in text
        assert (await door.get("/ui/runs", {"batuta_session": session}))[0] == 200
        assert (await door.get("/ui/keys", {"batuta_session": session}))[0] == 404
        await door.sign_in(**EVE)
        [entry] = await store.keys.list()
        assert (entry.name, entry.role, entry.tenant.name) == ("eve@example.com", "user", "default")
        [posted, _] = provider.posted
        assert posted["grant_type"] == "authorization_code" and posted["client_id"] == "batuta"


@pytest.mark.parametrize(
    ("person", "role"),
    [
        ({"groups": ["batuta-admins"]}, "admin"),
        ({"groups": "batuta-admins"}, "admin"),
        ({"email": "root@example.com", "email_verified": True}, "admin"),
        ({"email": "root@example.com", "email_verified": False}, "user"),
        ({"email": "root@example.com"}, "user"),
        ({"groups": [7, None, "x"]}, "user"),
        ({}, "user"),
    ],
)
async def test_roles_are_what_the_provider_says(provider, store, person, role):
    admins = frozenset({"batuta-admins", "root@example.com"})
    async with door_of(provider, store, admins=admins) as door:
        _, session, _ = await door.sign_in(**person)
        status, _, _ = await door.get("/ui/keys", {"batuta_session": session})
        assert status == (200 if role == "admin" else 404)
        await door.sign_in(groups=[])  # the next time the provider says something else
        assert (await door.get("/ui/keys", {"batuta_session": session}))[0] == 404


async def test_who_may_sign_in_can_be_said(provider, store):
    async with door_of(provider, store, users=frozenset({"staff"})) as door:
        assert (await door.sign_in(groups=["guests"]))[:2] == (403, None)
        assert (await door.sign_in(**EVE))[0] == 200


def bend(**claims):
    return lambda provider: provider.claims.update(claims)


def sign(key, algorithm="RS256"):
    def by(provider):
        provider.key, provider.algorithm = key, algorithm

    return by


def other_secret(provider):
    provider.secret = "another"


BENT = {
    "another's key": sign(OTHER),
    "a shared secret": sign(SHARED, "HS256"),
    "no signature": sign(SHARED, "none"),
    "another nonce": bend(nonce="x"),
    "no nonce": bend(nonce=None),
    "another issuer": bend(iss="https://evil.example"),
    "another audience": bend(aud="somebody-else"),
    "an audience of two, for another": bend(aud=["batuta", "x"], azp="x"),
    "expired": bend(exp=1),
    "no end": bend(exp=None),
    "from the future": bend(nbf=9_999_999_999),
    "nobody": bend(sub=None),
    "a number": bend(sub=7),
    "no secret": other_secret,
}


@pytest.mark.parametrize("name", BENT)
async def test_what_cannot_be_believed_is_refused(provider, store, name):
    async with door_of(provider, store) as door:
        url, kept = await door.start()
        back = provider.authorize(url, **EVE)
        BENT[name](provider)
        status, session, text = await door.come_back(back, kept)
    assert (status, session) == (401, None), text
    assert await store.keys.list() == []


NAMELESS = RSAKey.generate_key(2048)
AS_SECRET = NAMELESS.as_pem(private=False)
"""The public key, taken for a shared secret."""
CURVE, LARGE_CURVE = ECKey.generate_key("P-256"), ECKey.generate_key("P-384")


def shown(key, **fields):
    return key.as_dict(private=False, **fields)


@pytest.mark.parametrize(
    ("others", "status"),
    [
        ([], 200),
        ([shown(CURVE)], 200),
        ([shown(OTHER, use="enc")], 200),
        ([shown(OTHER, alg="RS512")], 200),
        ([SHARED.as_dict()], 200),
        ([shown(OTHER)], 401),
        ([shown(OTHER, use="sig")], 401),
    ],
    ids=[
        "alone",
        "a curve",
        "for encryption",
        "another algorithm",
        "a secret",
        "two",
        "two of use",
    ],
)
async def test_a_token_that_names_no_key_is_of_the_only_one_that_fits(
    provider, store, others, status
):
    provider.key, provider.keys, provider.key_name = NAMELESS, [NAMELESS], None
    provider.other_keys = others
    async with door_of(provider, store) as door:
        assert (await door.sign_in(**EVE))[0] == status


@pytest.mark.parametrize(
    ("key", "algorithm", "name"),
    [
        (OTHER, "RS256", None),
        (SHARED, "HS256", None),
        (AS_SECRET, "HS256", None),
        (SHARED, "none", None),
        (CURVE, "ES256", None),
        (LARGE_CURVE, "ES384", None),
        (NAMELESS, "RS512", None),
        (NAMELESS, "RS256", "one"),
        (NAMELESS, "RS256", ""),
    ],
)
async def test_a_token_that_names_no_key_is_believed_no_sooner(
    provider, store, key, algorithm, name
):
    provider.keys, provider.other_keys = [NAMELESS], [SHARED.as_dict(), shown(LARGE_CURVE)]
    provider.key, provider.algorithm, provider.key_name = key, algorithm, name
    async with door_of(provider, store) as door:
        assert (await door.sign_in(**EVE))[:2] == (401, None)
        assert await store.keys.list() == []


async def test_a_sign_in_belongs_to_the_browser_that_began_it(provider, store):
    async with door_of(provider, store) as door:
        url, kept = await door.start()
        other_url, other = await door.start()
        back = provider.authorize(url, **EVE)
        for cookie in ("", "x", "x.y", other, kept[:-1] + ("0" if kept[-1] != "0" else "1")):
            assert (await door.come_back(back, cookie))[:2] == (401, None), cookie
        assert (await door.come_back({**back, "state": "x"}, kept))[:2] == (401, None)
        assert (await door.come_back({"code": back["code"]}, kept))[:2] == (401, None)
        assert (await door.come_back({**back, "iss": "https://evil.example"}, kept))[0] == 401
        assert (await door.come_back({"error": "access_denied", "state": back["state"]}, kept))[0] == 401  # fmt: skip
        assert not provider.posted
        assert (await door.come_back(back, kept))[0] == 200
        assert (await door.come_back(back, kept))[:2] == (401, None), "a code counts once"
        # An attacker's own code, in the browser of somebody else.
        theirs = provider.authorize(other_url, **EVE)
        assert (await door.come_back({**theirs, "state": back["state"]}, kept))[:2] == (401, None)


@pytest.mark.parametrize("then", ["https://evil.example/", "//evil.example", "/ui/\\x", "/v1/runs"])
async def test_it_leads_nowhere_else(provider, store, then):
    async with door_of(provider, store) as door:
        url, kept = await door.start(then)
        _, _, text = await door.come_back(provider.authorize(url, **EVE), kept)
        assert 'href="/ui/"' in text and "evil" not in text


async def test_keys_that_change_are_read_again_and_another_issuer_is_not_believed(provider, store):
    async with door_of(provider, store) as door:
        provider.document = {"issuer": "https://evil.example"}
        assert (await door.get("/ui/oidc/start"))[0] == 503
        provider.document = {}
        door.later += 10
        assert (await door.sign_in(**EVE))[0] == 200
        provider.keys = [THIRD]  # rotated, a moment after the first were read
        provider.key = THIRD
        assert (await door.sign_in(**EVE))[:2] == (401, None)
        door.later += 60
        assert (await door.sign_in(**EVE))[0] == 200


async def test_strangers_make_nobody_ask_the_provider_again_and_again(provider, store):
    async with door_of(provider, store) as door:
        provider.document = {"issuer": "https://evil.example"}
        assert {(await door.get("/ui/oidc/start"))[0] for _ in range(20)} == {503}
        assert len(provider.asked) == 1, "what cannot be read is not asked for by each of them"
        provider.document = {}
        door.later += 10
        assert (await door.sign_in(**EVE))[0] == 200
        provider.asked.clear()
        provider.key = OTHER
        door.later += 60
        for _ in range(20):
            assert (await door.sign_in(**EVE))[0] == 401
        assert provider.asked.count("/keys") == 1


async def test_keys_that_cannot_be_used_are_left_out(provider, store):
    """A provider shows keys of kinds that are newer than this server, or meant for others."""
    async with door_of(provider, store) as door:
        provider.other_keys = [
            {"kty": "RSA", "kid": "broken", "n": "!!", "e": "AQAB"},
            {"kty": "AKP", "kid": "newer", "alg": "ML-DSA-44", "pub": "AA"},
            {"kid": "kindless"},
            SHARED.as_dict(),
            *(None, 7, "x", []),
        ]
        assert (await door.sign_in(**EVE))[0] == 200
        provider.keys = []
        door.later += 7200
        assert (await door.get("/ui/oidc/start"))[0] == 503


@pytest.mark.parametrize("place", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize("url", ["/token", "", "ftp://x/", "javascript:alert(1)", 7, None])
async def test_addresses_that_the_provider_cannot_have(provider, store, place, url):
    async with door_of(provider, store) as door:
        provider.document = {place: url}
        assert (await door.get("/ui/oidc/start"))[0] == 503


async def test_the_secret_is_not_sent_without_tls_where_the_issuer_has_it(provider):
    options = OidcOptions(issuer="https://id.example", client_id="b", redirect_uri=BACK)
    async with HttpTransport() as http:
        client = OidcClient(options, http, KeyHasher(b"x" * 32))
        client._check_endpoint("https://id.example/token")
        with pytest.raises(ValueError, match="TLS"):
            client._check_endpoint("http://id.example/token")


async def test_a_provider_that_says_nothing_holds_nobody_for_long(provider, store):
    async with door_of(provider, store, patience=0.3) as door:
        url, kept = await door.start()
        back = provider.authorize(url, **EVE)
        provider.speaks = anyio.Event()
        with anyio.fail_after(20):
            status, session, text = await door.come_back(back, kept)
            assert (status, session) == (401, None) and "gave no token" in text
            door.later += 7200
            assert (await door.get("/ui/oidc/start"))[0] == 503
        provider.speaks.set()


async def test_a_provider_that_is_away_is_said_to_be(store):
    async with HttpTransport() as http:
        provider = IdentityProvider()
        provider.issuer = "http://127.0.0.1:9"
        door = Door(provider, store, http)
        async with door.serving:
            status, _, text = await door.get("/ui/oidc/start")
    assert status == 503 and "127.0.0.1:9" not in text


async def test_without_a_provider_there_is_no_such_screen(store):
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: "x")}, store=store)
    ) as server:
        for path in ("/ui/oidc/start", "/ui/oidc/callback", "/ui/own-keys"):
            async with server.http.get(path, allow_redirects=False) as answer:
                assert answer.status == 404


class Visitor:
    """Somebody who has signed in, in front of the page."""

    def __init__(self, door, session):
        self.door, self.cookies = door, {"batuta_session": session}

    async def post(self, path, token=None, **form):
        if token is None:
            _, _, text = await self.door.get("/ui/own-keys", self.cookies)
            token = text.partition('name="token" value="')[2].partition('"')[0]
        headers = {"cookie": f"batuta_session={self.cookies['batuta_session']}"}
        async with self.door.serving.http.post(
            path, data={"token": token, **form}, headers=headers, allow_redirects=False
        ) as answer:
            self.cookies |= {name: each.value for name, each in answer.cookies.items()}
            return answer.status, await answer.text()

    async def make_key(self, name="ci"):
        status, text = await self.post("/ui/own-keys", name=name)
        assert status == 303, text
        _, _, text = await self.door.get("/ui/own-keys", self.cookies)
        return text.partition("<code data-secret>")[2].partition("<")[0]

    async def ask(self, key):
        body = {"model": "worker/ada", "messages": HI}
        headers = {"authorization": f"Bearer {key}"}
        async with self.door.serving.http.post("/v1/chat/completions", json=body, headers=headers) as answer:  # fmt: skip
            return answer.status


async def test_a_users_keys_share_the_users_limits(provider, store):
    limits = KeyPermissions(rpm=3, per_day=Decimal(10))
    async with door_of(provider, store, limits=limits) as door:
        eve = Visitor(door, (await door.sign_in(**EVE))[1])
        keys = [await eve.make_key(f"k{number}") for number in range(2)]
        asked = [await eve.ask(key) for key in (*keys, *keys)]
        assert asked == [200, 200, 200, 429], "two keys are not two rates"
        await store.flush()
        [entry] = [key for key in await store.keys.list() if key.identity]
        from batuta.store.spend_report import report_spending

        [spent] = await report_spending(store.database, ("key",))
        assert spent.group == (entry.id,)


async def test_many_keys_made_at_once_are_no_more_than_a_user_may_have(provider, store):
    async with door_of(provider, store) as door:
        eve = Visitor(door, (await door.sign_in(**EVE))[1])
        _, _, text = await door.get("/ui/own-keys", eve.cookies)
        token = text.partition('name="token" value="')[2].partition('"')[0]
        statuses = []

        async def make():
            statuses.append((await eve.post("/ui/own-keys", token=token, name="n"))[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_OWN_KEYS + 20):
                tasks.start_soon(make)
        assert sorted(statuses) == [303] * MAX_OWN_KEYS + [400] * 20
        assert len([key for key in await store.keys.list() if key.user]) == MAX_OWN_KEYS


@pytest.mark.parametrize("told", [{"email_verified": False}, {"email_verified": "true"}, {}])
async def test_an_address_that_is_not_verified_is_no_name_and_no_right(provider, store, told):
    boss = frozenset({"boss@example.com"})
    async with door_of(provider, store, role_claim="email", admins=boss, users=boss) as door:
        assert (await door.sign_in(email="boss@example.com", **told))[:2] == (403, None)
    async with door_of(provider, store) as door:
        assert (await door.sign_in(sub="17", email="boss@example.com", **told))[0] == 200
        [entry] = await store.keys.list()
        assert (entry.name, entry.role) == ("17", "user")


async def test_a_users_keys_end_with_the_user(provider, store):
    async with door_of(provider, store) as door:
        session = (await door.sign_in(**EVE))[1]
        eve = Visitor(door, session)
        first, second = await eve.make_key("a"), await eve.make_key("b")
        name = first.split("_")[1]
        assert (await eve.post(f"/ui/own-keys/{name}/revoke"))[0] == 303
        assert [await eve.ask(key) for key in (first, second)] == [401, 200]
        states = {key.id: key.state(time.time()) for key in await store.keys.list()}
        assert (states[name], states[second.split("_")[1]]) == ("revoked", "active")
        [entry] = [key for key in await store.keys.list() if key.identity]
        await store.keys.revoke(entry.id)
        door.serving.app_state.authenticator.forget(entry.id)
        assert await eve.ask(second) == 401
        assert (await door.get("/ui/runs", eve.cookies))[0] == 303
        assert (await door.sign_in(**EVE))[:2] == (401, None), "and does not come in again"


async def test_nobody_touches_anothers_keys(provider, store):
    async with door_of(provider, store) as door:
        eve = Visitor(door, (await door.sign_in(**EVE))[1])
        bob = Visitor(door, (await door.sign_in(sub="18"))[1])
        key = await eve.make_key()
        assert (await bob.post(f"/ui/own-keys/{key.split('_')[1]}/revoke"))[0] == 404
        assert key.split("_")[1] not in (await door.get("/ui/own-keys", bob.cookies))[2]
        assert (await eve.post("/ui/own-keys", token="x", name="n"))[0] == 403
        assert (await eve.post("/ui/own-keys", name=""))[0] == 400
        assert await eve.ask(key) == 200


async def test_settings_that_cannot_be_used():
    hasher = KeyHasher(b"x" * 32)
    async with HttpTransport() as http:
        for issuer, back in (("http://idp.example", BACK), ("https://idp.example", "https://x/")):
            options = OidcOptions(issuer=issuer, client_id="b", redirect_uri=back)
            with pytest.raises(ConfigError, match=r"issuer|redirect_uri"):
                OidcClient(options, http, hasher)
