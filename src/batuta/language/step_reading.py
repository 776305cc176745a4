"""Parses the prompt of a step, for workers that are not language models. Pure.

`read_step` inverts `worker_messages`. Text of other agents is between tags that it cannot close, so
it is not taken for the subtask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batuta.core import Message, Role
from batuta.language.material import PREVIOUS_ROUND, RESPONSE, SUBTASK, TASK, without_fetched
from batuta.language.prompt import ASSIGNED, LAST_STEP, WORKER_PREAMBLE

_OPENING = re.compile(rf'<({TASK}|{SUBTASK}|{RESPONSE}|{PREVIOUS_ROUND})(?: step="\d+")?>\n')
_RESPONSES = re.compile(rf'<{RESPONSE} step="\d+">\n(.*?)\n</{RESPONSE}>', re.DOTALL)
_ADDRESS = re.compile(
    r"https?://[^\s<>\"'`\\^{}|。、，；：！？（）「」『』《》【】]+", re.IGNORECASE
)
_AFTER_ADDRESS = ".,;:!?*_"
_PAIRS = {")": "(", "]": "["}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWords:
    """The subtask of a step and the replies in its prompt."""

    subtask: str
    """The subtask; without one, the question if the step reads nothing, else empty."""
    responses: tuple[str, ...] = ()
    """The replies that the step may read, in the order of its prompt."""


def read_step(messages: tuple[Message, ...]) -> StepWords:
    """Return the subtask and the replies of a step's prompt."""
    texts = [message.text for message in messages if message.role is Role.USER]
    prompt = texts[-1] if texts else ""
    if not prompt.startswith(WORKER_PREAMBLE):
        return StepWords(subtask=prompt.strip())
    at, responses = len(WORKER_PREAMBLE), list[str]()
    while (opened := _OPENING.match(prompt, _skip_space(prompt, at))) is not None:
        closing = f"\n</{opened[1]}>"
        # With an empty text, both tags share one line break.
        end = prompt.find(closing, opened.end() - 1)
        if end < 0:
            break
        at = end + len(closing)
        block = prompt[opened.start() : at]
        responses += [response[1] for response in _RESPONSES.finditer(block)]
    rest = prompt[_skip_space(prompt, at) :].removesuffix(LAST_STEP).strip()
    subtask = rest.removeprefix(ASSIGNED) if rest.startswith(ASSIGNED) else ""
    return StepWords(subtask=subtask.strip(), responses=tuple(responses))


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] == "\n":
        at += 1
    return at


def find_addresses(text: str) -> tuple[str, ...]:
    """Return the web addresses in a text, each once; addresses within fetched text are ignored."""
    addresses = (_trim_address(each[0]) for each in _ADDRESS.finditer(without_fetched(text)))
    return tuple(dict.fromkeys(addresses))


def _trim_address(address: str) -> str:
    """Return the address without the punctuation of the sentence around it."""
    count = {sign: address.count(sign) for pair in _PAIRS.items() for sign in pair}
    end = len(address)
    while end and (
        (last := address[end - 1]) in _AFTER_ADDRESS
        or (last in _PAIRS and count[last] > count[_PAIRS[last]])
    ):
        if last in _PAIRS:
            count[last] -= 1
        end -= 1
    return address[:end]
