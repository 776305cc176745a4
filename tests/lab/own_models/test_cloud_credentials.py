"""Bedrock by signature, Azure and Vertex by token: their own libraries, against local fakes."""

import hashlib
import hmac
import json
import time
from urllib.parse import parse_qs

import anyio
import pytest
from aiohttp import web

from batuta.clients import HttpTransport
from batuta.clients.cloud_credentials import TokenSigner, _region_of
from batuta.config.load import load_config
from batuta.core import Outcome, Question
from batuta.engine import conduct
from batuta.errors import ConfigError, ProviderAuthError

pytestmark = pytest.mark.anyio
KEY_ID, SECRET_KEY = "AKIAEXAMPLEEXAMPLE", "a-secret-that-signs"
CHAT = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}], "model": "m"}
ROLE_REFUSED = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
ROLE = (
    "[default]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = me\n"
    f"[profile me]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET_KEY}\n"
)
GEMINI = {"candidates": [{"content": {"parts": [{"text": "Hello."}]}, "finishReason": "STOP"}]}


class Cloud:
    """A provider and its token servers on one address; it keeps what it received."""

    def __init__(self, *, lasts=3600, refuses=False):
        self.calls, self.token_requests = [], []
        self.lasts, self.refuses = lasts, refuses

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        self.origin = f"http://{self.host}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def handle(self, request):
        body = await request.read()
        if self.refuses and b"Action=AssumeRole" in body:
            return web.Response(status=403, text=ROLE_REFUSED, content_type="text/xml")
        if request.path == "/token":
            return self._token(request, body)
        self.calls.append((request.method, request.path, dict(request.headers), body))
        return web.json_response(GEMINI if "generateContent" in request.path else CHAT)

    def _token(self, request, body):
        self.token_requests.append((dict(request.query), dict(request.headers), body.decode()))
        if self.refuses:
            return web.json_response({"error": "invalid_grant"}, status=400)
        given = {
            "access_token": f"token-{len(self.token_requests)}",
            "expires_in": self.lasts,
            "expires_on": str(int(time.time()) + self.lasts),
            "resource": "https://cognitiveservices.azure.com",
            "token_type": "Bearer",
        }
        return web.json_response(given)


async def run_question(tmp_path, provider, url, times=1):
    file = tmp_path / "batuta.toml"
    file.write_text(
        f"[[workers]]\nid = 'w'\nprovider = '{provider}'\nmodel = 'm-1'\nbase_url = '{url}'\n"
    )
    async with HttpTransport() as http:
        found = await load_config(http, pool=str(file), environ={}, conductor="best")
        return [
            await conduct(
                Question.of("What is it? ünïcode"), found.conductor, found.pool, found.clients
            )
            for _ in range(times)
        ]


def aws_signature(method, path, headers, body, region):
    """AWS's signature, version 4, written out."""
    lower = {name.lower(): value for name, value in headers.items()}
    authorization = lower["authorization"]
    fields = dict(part.strip().split("=", 1) for part in authorization.partition(" ")[2].split(","))
    signed = fields["SignedHeaders"].split(";")
    canonical = "\n".join(
        [
            method,
            path,
            "",
            *(f"{name}:{lower[name].strip()}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    stamp = lower["x-amz-date"]
    scope = f"{stamp[:8]}/{region}/bedrock/aws4_request"
    said = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{said}"
    key = f"AWS4{SECRET_KEY}".encode()
    for word in (stamp[:8], region, "bedrock", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    assert fields["Credential"] == f"{KEY_ID}/{scope}"
    return fields["Signature"], hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), signed


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
async def test_bedrock_is_signed_to_the_byte(tmp_path, monkeypatch, variable):
    pytest.importorskip("botocore")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ("AWS_SESSION_TOKEN", "a-session"),
        (variable, "eu-west-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    async with Cloud() as cloud:
        (run,) = await run_question(tmp_path, "bedrock", f"{cloud.origin}/openai/v1")
    assert run.outcome is Outcome.ANSWERED, run.error
    ((method, path, headers, body),) = cloud.calls
    assert path == "/openai/v1/chat/completions"
    sent, right, signed = aws_signature(method, path, headers, body, "eu-west-1")
    assert sent == right
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(signed)
    assert json.loads(body)["messages"][0]["content"] == "What is it? ünïcode"
    assert aws_signature(method, path, headers, body + b" ", "eu-west-1")[1] != sent
    assert SECRET_KEY not in str(cloud.calls)


async def test_without_credentials_a_call_says_what_to_set(tmp_path, monkeypatch):
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    async with Cloud() as cloud:
        (run,) = await run_question(tmp_path, "bedrock", f"{cloud.origin}/openai/v1")
    assert run.outcome is Outcome.FAILED
    assert "set AWS_BEARER_TOKEN_BEDROCK, AWS_ACCESS_KEY_ID" in run.error
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("profile", "kind"),
    [(ROLE, "ClientError"), ("[default]\ncredential_process = echo no JSON\n", "JSONDecodeError")],
)
async def test_credentials_that_aws_refuses_are_one_sentence(tmp_path, monkeypatch, profile, kind):
    pytest.importorskip("botocore")
    (tmp_path / "config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    async with Cloud(refuses=True) as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.origin)
        (run,) = await run_question(tmp_path, "bedrock", f"{cloud.origin}/openai/v1")
    assert run.outcome is Outcome.FAILED
    assert f"AWS gave no credentials: {kind}" in run.error
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("profile", "said"),
    [("", "region in AWS_REGION"), ("absent", "AWS's configuration: .*absent")],
)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/openai/v1", "https://bedrock.corp.example/v1"])
async def test_a_region_that_nothing_names_is_asked_for(tmp_path, monkeypatch, profile, said, url):
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(ConfigError, match=f"set AWS_BEARER_TOKEN_BEDROCK, or .*{said}"):
        await run_question(tmp_path, "bedrock", url)


@pytest.mark.parametrize(
    "host",
    [
        "bedrock-runtime.eu-west-1.amazonaws.com",
        "bedrock-runtime-fips.eu-west-1.amazonaws.com",
        "bedrock-mantle.eu-west-1.api.aws",
        "vpce-0a1-2b.bedrock-runtime.eu-west-1.vpce.amazonaws.com",
    ],
)
def test_the_region_is_read_from_the_address(host):
    assert _region_of(f"https://{host}/openai/v1") == "eu-west-1"


async def test_azure_asks_entra_for_a_token_once(tmp_path, monkeypatch):
    pytest.importorskip("azure.identity")
    async with Cloud() as cloud:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{cloud.origin}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "who-i-am")
        runs = await run_question(tmp_path, "azure", f"{cloud.origin}/openai/v1", times=2)
    assert [run.outcome for run in runs] == [Outcome.ANSWERED] * 2, runs
    ((query, headers, _),) = cloud.token_requests
    assert query["resource"] == "https://cognitiveservices.azure.com"
    assert headers["X-IDENTITY-HEADER"] == "who-i-am"
    assert [call[2]["Authorization"] for call in cloud.calls] == ["Bearer token-1"] * 2


def service_account(tmp_path, token_uri):
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization as form

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    file = tmp_path / "account.json"
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "me@p.iam.gserviceaccount.com",
        "token_uri": token_uri,
    }
    file.write_text(json.dumps(account))
    return str(file)


@pytest.mark.parametrize("lasts", [3600, 60])
async def test_vertex_asks_google_for_a_token_and_renews_it(tmp_path, monkeypatch, lasts):
    pytest.importorskip("google.auth")
    async with Cloud(lasts=lasts) as cloud:
        account = service_account(tmp_path, f"{cloud.origin}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
        url = f"{cloud.origin}/v1/projects/p/locations/l/publishers/google"
        runs = await run_question(tmp_path, "vertex", url, times=2)
    assert [run.outcome for run in runs] == [Outcome.ANSWERED] * 2, runs
    assert parse_qs(cloud.token_requests[0][2])["grant_type"][0].endswith("jwt-bearer")
    paths = [call[1] for call in cloud.calls]
    assert paths == ["/v1/projects/p/locations/l/publishers/google/models/m-1:generateContent"] * 2
    tokens = [call[2]["Authorization"] for call in cloud.calls]
    assert tokens == (
        ["Bearer token-1"] * 2 if lasts > 120 else ["Bearer token-1", "Bearer token-2"]
    )


async def test_a_refused_token_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("google.auth")
    async with Cloud(refuses=True) as cloud:
        account = service_account(tmp_path, f"{cloud.origin}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
        (run,) = await run_question(tmp_path, "vertex", f"{cloud.origin}/v1")
    assert run.outcome is Outcome.FAILED
    assert "Google gave no token: RefreshError" in run.error
    assert cloud.calls == []


async def test_many_calls_ask_for_one_token():
    asked = []

    def fetch():
        asked.append(1)
        return f"t{len(asked)}", time.time() + 1000

    signer = TokenSigner(fetch)
    got = []

    async def sign():
        got.append(await signer.sign("POST", "http://h", {"A": "b"}, b""))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(sign)
    assert got == [{"A": "b", "Authorization": "Bearer t1"}] * 10
    assert len(asked) == 1


async def test_a_token_that_cannot_be_had_is_asked_for_again():
    answers = iter([ProviderAuthError("no"), ("t", time.time() + 1000)])

    def fetch():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    signer = TokenSigner(fetch)
    with pytest.raises(ProviderAuthError):
        await signer.sign("POST", "http://h", {}, b"")
    assert await signer.sign("POST", "http://h", {}, b"") == {"Authorization": "Bearer t"}
