"""The chat format that the embedded model was trained in."""

from __future__ import annotations

from pathlib import Path

from batuta.core import Message, Request, Role, Text
from batuta.embedded.model_files import read_bytes, read_json
from batuta.errors import BadRequestError, ConfigError

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The one chat template that `chat` follows."""
_ROLES = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
}


def format_chat_prompt(request: Request) -> str:
    """The prompt of `request` up to the end of its prefill.

    The marks of the roles are not escaped in what a message says: the text is the one that the
    template gives, in training as here.

    Raises:
        BadRequestError: it holds more than text, or a role besides system, user, assistant.
    """
    if request.tools or request.response_format:
        raise BadRequestError(
            "the embedded model knows neither tools nor response formats: leave both out"
        )
    turns = "".join(map(_format_turn, request.messages))
    return f"{turns}<|assistant|>{request.prefill}"


def _format_turn(message: Message) -> str:
    role = _ROLES.get(message.role)
    if role is None or not all(isinstance(part, Text) for part in message.parts):
        raise BadRequestError("the embedded model reads only text of system, user and assistant")
    return f"<|{role}|>{message.text}"


def check_template(folder: Path) -> None:
    """Makes sure that the tokenizer's chat template is `CHAT_TEMPLATE`.

    Raises:
        ConfigError: it is another, or there is none.
    """
    own = folder / "chat_template.jinja"
    if own.exists():
        name, template = own.name, read_bytes(own).decode(errors="replace")
    else:
        name = "tokenizer_config.json"
        template = read_json(folder / name).get("chat_template")
    if template is None:
        raise ConfigError(f"{name} has no chat_template")
    if template != CHAT_TEMPLATE:
        raise ConfigError(
            f"{name} has a chat template other than the one computed here: {CHAT_TEMPLATE}"
        )
