"""Signed webhook messages to the operator's program, and checks of its signed answers.

Headers and signatures follow https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Mapping, Sequence
from time import time
from typing import Any, final

import anyio

from batuta.clients.http_target import HttpTarget, Secret
from batuta.clients.transport import HttpTransport
from batuta.errors import ClientError, ConfigError

ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = (
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
)
MAX_AGE_SECONDS = 300
"""Maximum number of seconds by which a message's timestamp may differ from this machine's clock."""
_PAUSES = (1.0, 5.0, 25.0)
"""Seconds before each retry of a message that was not accepted."""
_MIN_KEY_BYTES = 24
_PREFIX = "whsec_"

logger = logging.getLogger(__name__)


class ForgedMessageError(Exception):
    """A message is not signed with the secret, or not recent; the error's text says which."""


@final
class Webhook:
    """A webhook's URL and the secret with which both sides sign."""

    def __init__(
        self, http: HttpTransport, url: str, secret: Secret, pauses: Sequence[float] = _PAUSES
    ) -> None:
        """Decode the secret; nothing is sent yet.

        Args:
            http: the transport; it does not follow redirects.
            url: the URL from the settings; no request can change it.
            secret: base64 of at least 24 bytes, with or without the prefix `whsec_`.
            pauses: seconds before each retry of a message that was not accepted.

        Raises:
            ConfigError: the secret is not base64 or too short.
        """
        try:
            key = base64.b64decode(secret.reveal().removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if len(key) < _MIN_KEY_BYTES:
            raise ConfigError(
                f"the secret must be base64 of at least {_MIN_KEY_BYTES} bytes; `openssl rand "
                "-base64 32` makes one"
            )
        self._key = key
        self._url = url
        self._pauses = pauses
        self._http = http.signed_by(self)

    async def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the headers with the timestamp and the signature."""
        del method, url
        stamp = str(int(time()))
        signature = self._signature(headers[ID_HEADER], stamp, body)
        return {**headers, TIME_HEADER: stamp, SIGNATURE_HEADER: signature}

    async def send(self, message_id: str, body: Mapping[str, Any]) -> None:
        """Send the message, with retries; if it is not accepted, log a warning.

        Args:
            message_id: the same for every retry, so that the receiver can ignore duplicates.
            body: sent as JSON.
        """
        target = HttpTarget(url=self._url, headers={ID_HEADER: message_id})
        for pause in (*self._pauses, None):
            try:
                await self._http.send(target, body)
            except ClientError as error:
                if pause is None:
                    logger.warning("a webhook message was not accepted: %s", error.code)
                    return
                await anyio.sleep(pause)
            else:
                return

    def check(self, headers: Mapping[str, str], body: bytes) -> None:
        """Check that a message is signed with the secret and recent.

        Args:
            headers: the headers; names are in lower case, or the mapping ignores case.
            body: the body exactly as it was received.

        Raises:
            ForgedMessageError: the signature is wrong, or the timestamp is not within
                `MAX_AGE_SECONDS` of this machine's clock.
        """
        stamp = headers.get(TIME_HEADER, "")
        expected = self._signature(headers.get(ID_HEADER, ""), stamp, body).encode()
        given = headers.get(SIGNATURE_HEADER, "")[:4096].encode().split()
        if not any(hmac.compare_digest(expected, each) for each in given):
            raise ForgedMessageError("the signature does not match the message")
        if not stamp.isascii() or not stamp.isdigit() or abs(time() - int(stamp)) > MAX_AGE_SECONDS:
            raise ForgedMessageError(
                f"the timestamp of the message is not within {MAX_AGE_SECONDS} seconds of the "
                "server's clock"
            )

    def _signature(self, message_id: str, stamp: str, body: bytes) -> str:
        signed = f"{message_id}.{stamp}.".encode() + body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}"
