"""Addresses of pictures: nothing is fetched here, but a provider in this network would fetch it."""

from __future__ import annotations

from batuta.clients.public_addresses import is_public_url
from batuta.core import Question
from batuta.gateway.errors import invalid_value


def check_pictures(question: Question, *, private: bool = False) -> None:
    """Return if every picture is given with the request or has a public address, else raise.

    Names are not looked up: who answers for a name may change from one moment to the next.

    Args:
        question: what is asked.
        private: whether addresses of private networks are allowed.

    Raises:
        APIError: an address is of this machine or of a private network, or is none.
    """
    for index, message in enumerate(question.messages):
        for image in message.images:
            if image.url.startswith("data:") or private:
                continue
            if not is_public_url(image.url):
                reason = "a picture's address must be public; send the picture as a data URL."
                raise invalid_value(f"messages[{index}]", reason)
