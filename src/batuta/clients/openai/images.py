"""Image generation: `POST {base_url}/images/generations` of OpenAI and compatible servers."""

from __future__ import annotations

from typing import Any, final

from batuta.clients.call import ProviderClient
from batuta.clients.data_url import read_picture, read_picture_address
from batuta.clients.decoding import ErrorReply, ProviderReply, as_count, as_object, as_string
from batuta.clients.error_mapping import CHOICES, PENALTIES, refuse_fields
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import ChatDialect, openai_target
from batuta.clients.openai.stream import OpenAIStreamAccumulator
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.transport import HttpTransport
from batuta.core import CallListener, Delta, Image, Reply, Request, Role, Usage, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import BadRequestError
from batuta.language.step_reading import read_step


@final
class ImageClient(ProviderClient):
    """A worker that replies with an image and no text."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str,
        key: Secret,
        dialect: ChatDialect,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        target = openai_target(base_url, "/images/generations", key, dialect)
        adapter = ImageAdapter(worker.model, dialect)
        super().__init__("Image", worker, http, adapter=adapter, target=target)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return a reply with the image; a streaming listener receives it in one delta.

        Raises:
            ClientError: the call gave no usable image.
        """
        reply = await super().complete(request)
        if listener.streaming:
            for image in reply.images:
                await listener.on_delta(Delta(image=image))
        return reply


@final
class ImageAdapter:
    """Translates requests to this API and parses its replies; pure functions."""

    supports_prefill = False

    def __init__(self, model: str, dialect: ChatDialect) -> None:
        self._model = model
        self._extra = dialect.extra

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            BadRequestError: the request has attachments, no text to draw from, or a sampling field
                that is not supported.
        """
        refuse_fields(self._model, request.sampling, (*PENALTIES, *CHOICES))
        if any(message.attachments for message in request.messages):
            raise BadRequestError("this worker draws from text only and accepts no attachments")
        prompt = _picture_prompt(request)
        if not prompt:
            raise BadRequestError("there is nothing to draw: the step has no text")
        return {"model": self._model, "prompt": prompt, "n": 1, **self._extra}

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply.

        Raises:
            ErrorReply: `data` is an error object.
            AttributeError, KeyError, TypeError or ValueError: `data` has no valid image.
        """
        if data.get("error"):
            raise ErrorReply(data)
        images = tuple(_read_row(as_object(row), data) for row in data["data"])
        if not images:
            raise ValueError("a reply without an image")
        reply = Reply(text="", images=images, model=as_string(data.get("model")))
        return ProviderReply(reply=reply, usage=_parse_usage(data.get("usage")))

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for the usage of a faulty reply; images are not streamed."""
        return OpenAIStreamAccumulator()


def _picture_prompt(request: Request) -> str:
    """Return the prompt: the subtask and the responses that it reads, else the user's messages."""
    words = read_step(request.messages)
    texts = [message.text for message in request.messages if message.role is Role.USER]
    if not texts or words.subtask == texts[-1].strip():
        return "\n\n".join(filter(None, (text.strip() for text in texts)))
    return "\n\n".join(filter(None, (words.subtask, *words.responses)))


def _read_row(row: dict[str, Any], data: dict[str, Any]) -> Image:
    if encoded := as_string(row.get("b64_json")):
        return read_picture(encoded, f"image/{as_string(data.get('output_format')) or 'png'}")
    return read_picture_address(as_string(row.get("url")))


def _parse_usage(usage: Any) -> Usage | None:
    """Return the tokens of the prompt and of the image; None if neither number is stated."""
    counts = as_object(usage)
    given, made = as_count(counts.get("input_tokens")), as_count(counts.get("output_tokens"))
    return Usage(calls=1, input=given, output=made) if given or made else None
