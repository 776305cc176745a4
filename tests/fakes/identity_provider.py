"""An identity provider on the loopback: codes, and tokens for codes, as OpenID Connect has them."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
from aiohttp import web
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import RSAKey

RIGHT = RSAKey.generate_key(2048, {"kid": "one"})
BACK = "https://batuta.example/ui/oidc/callback"


def encode(part):
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


class IdentityProvider:
    """Gives out codes for whoever asks, and tokens for codes; bends them where it is told to."""

    def __init__(self, back=BACK):
        self.back, self.person, self.refuses = back, {}, False
        self.codes, self.posted = {}, []
        self.claims, self.key, self.algorithm = {}, RIGHT, "RS256"
        self.key_name = "one"
        """The `kid` in the header of tokens; None: there is none."""
        self.keys, self.secret = [RIGHT], "the-clients-secret"
        self.document = {}
        self.other_keys = []
        """Shown beside the keys, as they are."""
        self.asked, self.speaks = [], anyio.Event()
        self.speaks.set()

    async def __aenter__(self):
        app = web.Application(middlewares=[self.note])
        app.router.add_get("/.well-known/openid-configuration", self.describe)
        app.router.add_get("/keys", self.show_keys)
        app.router.add_get("/authorize", self.show_page)
        app.router.add_post("/token", self.give_token)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.issuer = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    @web.middleware
    async def note(self, request, handler):
        """Write down what is asked for, and answer once it may speak."""
        self.asked.append(request.path)
        await self.speaks.wait()
        return await handler(request)

    async def describe(self, _):
        places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}  # fmt: skip
        document = {"issuer": self.issuer, **{k: self.issuer + v for k, v in places.items()}}
        return web.json_response({**document, **self.document})

    async def show_keys(self, _):
        own = [key.as_dict(private=False) for key in self.keys]
        return web.json_response({"keys": [*self.other_keys, *own]})

    def authorize(self, url, **person):
        """What the provider's page does once somebody has signed in there: the way back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == self.back and "openid" in asked["scope"].split()
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked, person
        return {"code": code, "state": asked["state"]}

    async def show_page(self, request):
        """Send `person` back, who has signed in without being asked; or say that they refused."""
        back = self.authorize(str(request.url), **self.person)
        if self.refuses:
            back = {"error": "access_denied", "state": back["state"]}
        raise web.HTTPFound(f"{self.back}?{urlencode(back)}")

    async def give_token(self, request):
        form = await request.post()
        self.posted.append(dict(form))
        asked, person = self.codes.pop(form["code"], (None, None))
        proof = asked and create_s256_code_challenge(form.get("code_verifier", ""))
        if asked is None or proof != asked["code_challenge"] or form["redirect_uri"] != self.back or form.get("client_secret") != self.secret:  # fmt: skip
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": "batuta", "sub": "17", "iat": now, "exp": now + 300}
        claims |= {"nonce": asked["nonce"], **person, **self.claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm}
        if self.key_name is not None:
            header["kid"] = self.key_name
        if self.algorithm == "none":
            token = f"{encode(header)}.{encode(claims)}."
        elif isinstance(self.key, bytes):  # joserfc takes no public key for a secret
            text = f"{encode(header)}.{encode(claims)}"
            digest = hmac.digest(self.key, text.encode(), "sha256")
            token = f"{text}.{urlsafe_b64encode(digest).decode().rstrip('=')}"
        else:
            token = jwt.encode(header, claims, self.key, algorithms=[self.algorithm])
        return web.json_response({"access_token": "a", "token_type": "Bearer", "id_token": token})
