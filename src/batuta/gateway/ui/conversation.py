"""Further questions on the page, which continue the conversation of an earlier run. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

from batuta.clients.openai.client import ChatDialect, OpenAIChatAdapter
from batuta.core import Message, Question, Role, Run, Sampling, Text, ToolCall, ToolResult
from batuta.core import Request as CallRequest
from batuta.core.message import SYSTEM_ROLES, Audio, File, Image, assistant_message, user_message
from batuta.gateway.errors import invalid_value
from batuta.gateway.ui.run_view import pictures_until

_SAMPLING_FIELDS = ("temperature", "top_p", "max_tokens", "seed")
_API = ChatDialect(developer=True, cache_keys=True, cache_marks=True, files=True)
"""The dialect of Batuta's own chat completions."""


@final
class Conversation:
    """The conversation of a run, for a further question."""

    def __init__(self, run: Run) -> None:
        self._question = run.header.question
        self._reply = run.reply
        self._answer = run.answer or ""

    @property
    def instructions(self) -> str:
        """The system prompt; empty if there is none."""
        texts = [m.text for m in self._question.messages if m.role in SYSTEM_ROLES]
        return "\n\n".join(text for text in texts if text)

    @property
    def tools(self) -> str:
        """The caller's tools as JSON in the API's form; empty if there are none."""
        if not self._question.tools:
            return ""
        only_tools = Question(messages=(user_message(""),), tools=self._question.tools)
        return json.dumps(encode_question(only_tools)["tools"], indent=2, ensure_ascii=False)

    @property
    def attachments(self) -> list[str]:
        """The kinds and names of the images, files and recordings of the last question."""
        named = describe_attachments(last_asked(self._question))
        return [f"{kind.lower()} {name}".strip() for kind, name in named]

    @property
    def turns_before(self) -> int:
        """The number of user messages before the last one."""
        messages = self._question.messages
        return sum(m.role is Role.USER for m in messages[: _last_user_index(messages)])

    def continue_with(self, asked: Question) -> Question:
        """Return the conversation followed by the run's answer and the new question.

        If the run has no answer, its last question is left out.

        Raises:
            APIError: a worker waits for results of the caller's tools, or `asked` has anything but
                one user message and instructions.
        """
        if self._reply is not None and self._reply.tool_calls:
            reason = "a worker of that run waits for tool results; send them first."
            raise invalid_value("follow", reason)
        messages = self._question.messages
        before = messages if self._answer else messages[: _last_user_index(messages)]
        answer = (assistant_message(self._answer),) if self._answer else ()
        return self._with_messages(
            asked, (*_without_instructions(before), *answer, _single_user_message(asked))
        )

    def answer_calls(self, given: Question) -> Question:
        """Return the conversation followed by the worker's tool calls and the results in `given`.

        Raises:
            APIError: the results are not exactly one for each call.
        """
        results = tuple(message for message in given.messages if message.role is Role.TOOL)
        calls = () if self._reply is None else self._reply.tool_calls
        answered = sorted(
            part.call_id for m in results for part in m.parts if isinstance(part, ToolResult)
        )
        if self._reply is None or not calls or answered != sorted(call.id for call in calls):
            raise invalid_value("messages", "each tool call of the worker needs one result.")
        text = (Text(self._answer),) if self._answer else ()
        asking = Message(
            role=Role.ASSISTANT, parts=(*text, *calls), reasoning=self._reply.reasoning
        )
        return replace(self._question, messages=(*self._question.messages, asking, *results))

    def ask_again(self, asked: Question) -> Question:
        """Return the conversation with the text of its last question replaced by the new text.

        The attachments of the last question are kept, and those of the new question are added.

        Raises:
            APIError: `asked` has anything but one user message and instructions.
        """
        index, messages = _last_user_index(self._question.messages), self._question.messages
        newest = _single_user_message(asked)
        kept = tuple(part for part in messages[index].parts if not isinstance(part, Text))
        again = replace(messages[index], parts=(*kept, *newest.parts))
        return self._with_messages(
            asked, (*_without_instructions(messages[:index]), again, *messages[index + 1 :])
        )

    def _with_messages(self, asked: Question, messages: Sequence[Message]) -> Question:
        """Return the run's question with these messages and the form's settings in `asked`.

        These are the system prompt, temperature, top-p, maximum tokens, seed and effort.
        """
        own = asked.sampling
        sampling = replace(
            self._question.sampling,
            temperature=own.temperature,
            top_p=own.top_p,
            max_tokens=own.max_tokens,
            seed=own.seed,
            effort=own.effort,
        )
        instructions = tuple(m for m in asked.messages if m.role in SYSTEM_ROLES)
        return replace(self._question, messages=(*instructions, *messages), sampling=sampling)


def encode_question(question: Question) -> dict[str, Any]:
    """Return the question as the body of a chat completion, without a model."""
    request = CallRequest(
        messages=question.messages,
        sampling=question.sampling,
        tools=question.tools,
        tool_choice=question.tool_choice,
        parallel_tool_calls=question.parallel_tool_calls,
        response_format=question.response_format,
        cache=question.cache,
    )
    body = OpenAIChatAdapter("", _API).build_body(request, stream=False)
    del body["model"]
    return body


def sent_results(question: Question) -> list[tuple[str, str]]:
    """Return the tool results at the end of a conversation, as pairs of tool name and content."""
    names, found = dict[str, str](), list[tuple[str, str]]()
    for message in question.messages:
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        names.update((call.id, call.name) for call in calls)
        given = [part for part in message.parts if isinstance(part, ToolResult)]
        found += [(names.get(result.call_id, "a tool"), result.content) for result in given]
        if not given:
            found = []
    return found


def list_pictures(question: Question) -> list[Image]:
    """Return the images of a conversation in order."""
    return [
        part for message in question.messages for part in message.parts if isinstance(part, Image)
    ]


def last_asked(question: Question) -> Message:
    """Return the last user message, or the last message if there is no user message."""
    return question.messages[_last_user_index(question.messages)]


def pictures_before(question: Question) -> int:
    """Return the number of images before the last user message."""
    return pictures_until(question, _last_user_index(question.messages))


def describe_attachments(message: Message) -> Iterator[tuple[str, str]]:
    """Yield kind and name, URL or format of each image, file and recording of a message."""
    for part in message.parts:
        if isinstance(part, Image):
            yield "Picture", "" if part.url.startswith("data:") else part.url[:80]
        elif isinstance(part, File):
            yield "File", part.name or part.media_type
        elif isinstance(part, Audio):
            yield "Recording", part.format


def show_sampling(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling fields of the form; an unset field is empty."""
    values = {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
    return {name: "" if value is None else value for name, value in values.items()}


def _last_user_index(messages: Sequence[Message]) -> int:
    indexes = [index for index, m in enumerate(messages) if m.role is Role.USER]
    return indexes[-1] if indexes else len(messages) - 1


def _single_user_message(asked: Question) -> Message:
    """Return the user message of a question without history.

    Raises:
        APIError: the question has anything but one user message and a system prompt.
    """
    messages = _without_instructions(asked.messages)
    if len(messages) != 1 or messages[0].role is not Role.USER:
        raise invalid_value("messages", "it must have exactly one user message, the new question.")
    return messages[0]


def _without_instructions(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message for message in messages if message.role not in SYSTEM_ROLES)
