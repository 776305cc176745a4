"""Cloud credentials instead of an API key: AWS request signatures, Azure and Google tokens.

The clouds' own libraries make the signatures and tokens, and find the credentials where the clouds'
tools store them. The libraries are extras: `bedrock` (botocore), `azure` (azure-identity) and
`vertex` (google-auth).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from importlib import import_module
from typing import Any, Literal, Protocol, final

import anyio
import anyio.to_thread

from batuta.clients.http_target import Secret
from batuta.distribution import install_hint
from batuta.errors import ConfigError, ProviderAuthError

Cloud = Literal["aws", "azure", "google"]
AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
AWS_SERVICE = "bedrock"
RENEWAL_SECONDS = 120.0
"""Seconds before a token expires at which it is renewed."""
_EXTRAS: Mapping[Cloud, str] = {"aws": "bedrock", "azure": "azure", "google": "vertex"}
FetchToken = Callable[[], tuple[str, float]]
"""Returns a token and its expiry in seconds since the epoch; may block."""


class RequestSigner(Protocol):
    """Authenticates requests through their headers."""

    async def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers with which the request is sent.

        Raises:
            ProviderAuthError: there are no valid credentials.
        """
        ...


@final
class AwsSigner:
    """Signs requests with AWS signature version 4, through botocore."""

    def __init__(self, session: Any, region: str) -> None:
        """Create a signer for one region; credentials are looked up at the first request.

        Args:
            session: a botocore session; it renews its credentials itself.
            region: the region, such as `eu-west-1`.
        """
        self._session = session
        self._region = region

    async def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers, with date, signature and session token.

        Raises:
            ProviderAuthError: there are no credentials, or they cannot be renewed.
        """
        return await anyio.to_thread.run_sync(self._sign, method, url, headers, body)

    def _sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        auth, awsrequest = import_module("botocore.auth"), import_module("botocore.awsrequest")
        errors = import_module("botocore.exceptions")
        # Besides its own errors: a refused role, an output that cannot be parsed, and credentials
        # that have expired although they were just renewed.
        kinds = (errors.BotoCoreError, errors.ClientError, ValueError, RuntimeError)

        try:
            credentials = self._session.get_credentials()
            frozen = credentials.get_frozen_credentials() if credentials else None
        except kinds as error:
            raise ProviderAuthError(f"AWS gave no credentials: {type(error).__name__}") from None
        if frozen is None:
            raise ProviderAuthError(
                "there are no AWS credentials: set AWS_BEARER_TOKEN_BEDROCK, AWS_ACCESS_KEY_ID "
                "with its secret, or a profile"
            )
        request: Any = awsrequest.AWSRequest(
            method=method, url=url, data=body, headers=dict(headers)
        )
        auth.SigV4Auth(frozen, AWS_SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())


@final
class TokenSigner:
    """Adds a bearer token that is renewed before it expires."""

    def __init__(self, fetch: FetchToken) -> None:
        self._fetch = fetch
        self._token: Secret | None = None
        self._ends = 0.0
        """The token's expiry in seconds since the epoch."""
        self._renewal = anyio.Lock()

    async def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers with the token; concurrent calls fetch a new token only once.

        Raises:
            ProviderAuthError: no token could be fetched.
        """
        async with self._renewal:
            if self._token is None or time.time() > self._ends - RENEWAL_SECONDS:
                text, self._ends = await anyio.to_thread.run_sync(self._fetch)
                self._token = Secret(text)
        return {**headers, "Authorization": f"Bearer {self._token.reveal()}"}


def open_signer(cloud: Cloud, base_url: str) -> RequestSigner:
    """Return the signer for a cloud, with the credentials found on this machine.

    Raises:
        ConfigError: the cloud's library is not installed, AWS's region is not known, or there are
            no Google credentials; the message continues a sentence about the key that is missing.
            AWS and Azure look up credentials at the first request.
    """
    try:
        match cloud:
            case "aws":
                session = import_module("botocore.session").Session(_REGION_VARIABLE)
                return AwsSigner(session, _region_of(base_url) or _own_region(session))
            case "azure":
                return TokenSigner(_azure_tokens())
            case "google":
                return TokenSigner(_google_tokens())
    except ImportError:
        hint = install_hint(_EXTRAS[cloud])
        raise ConfigError(
            f"or use the cloud's own credentials, which need an extra: {hint}"
        ) from None


_BEDROCK_REGION = re.compile(r"\bbedrock[\w-]*\.([a-z]{2,4}(?:-[a-z]+)+-\d+)\.")
_REGION_VARIABLE = {"region": ("region", ["AWS_REGION", "AWS_DEFAULT_REGION"], None, None)}
"""Where botocore looks for the region; by itself it does not read `AWS_REGION`."""


def _region_of(base_url: str) -> str:
    """Return the region in a Bedrock URL, also a VPC endpoint's; "" for another URL."""
    host = base_url.partition("://")[2].partition("/")[0]
    found = _BEDROCK_REGION.search(host)
    return found[1] if found else ""


def _own_region(session: Any) -> str:
    """Return the region in the environment or AWS's configuration file.

    Raises:
        ConfigError: neither names a region, or the configuration cannot be read.
    """
    try:
        region = session.get_config_variable("region")
    except import_module("botocore.exceptions").BotoCoreError as error:
        raise ConfigError(f"or correct AWS's configuration: {error}") from None
    if not region:
        raise ConfigError("or name AWS's region in AWS_REGION, as the base_url names none")
    return region


def _azure_tokens() -> FetchToken:
    errors = import_module("azure.core.exceptions")
    credential: Any = import_module("azure.identity").DefaultAzureCredential()

    def fetch() -> tuple[str, float]:
        try:
            token = credential.get_token(AZURE_SCOPE)
        except errors.AzureError as error:
            raise ProviderAuthError(f"Entra gave no token: {type(error).__name__}") from None
        return token.token, float(token.expires_on)

    return fetch


def _google_tokens() -> FetchToken:
    auth, errors = import_module("google.auth"), import_module("google.auth.exceptions")
    requests = import_module("google.auth.transport.requests")

    try:
        default: Any = auth.default(scopes=[GOOGLE_SCOPE])
    except errors.DefaultCredentialsError:
        raise ConfigError("or Google's credentials (GOOGLE_APPLICATION_CREDENTIALS)") from None
    credentials = default[0]

    def fetch() -> tuple[str, float]:
        try:
            credentials.refresh(requests.Request())
        except errors.GoogleAuthError as error:
            raise ProviderAuthError(f"Google gave no token: {type(error).__name__}") from None
        ends = credentials.expiry.replace(tzinfo=UTC)  # a naive datetime in UTC
        return credentials.token, ends.timestamp()

    return fetch
