"""Questions with options that are scored by likelihood, not by what a model writes.

Where a worker's server echoes prompts with their log probabilities (`/v1/completions` of vLLM,
SGLang and others), each option's whole text is scored as the question's continuation, by the
convention of lm-evaluation-harness: the likeliest is the answer. Elsewhere the worker writes one
token, and the letter of an option that was the likeliest there is the answer (`logprobs` of chat
completions: OpenAI, llama.cpp). Other calls of a workflow are made as always.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from batuta.clients.scripted_client import split_reply
from batuta.core import CallListener, Client, Reply, Request, Task, TokenLogprob, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.core.message import user_message
from batuta.errors import BadRequestError, UnsupportedFieldError
from batuta.tasks.datasets.dataset import LETTERS
from batuta.tasks.datasets.task_files import LIKELIHOOD, LIKELIHOOD_BY_LENGTH
from batuta.usage import ZERO_COST, ZERO_USAGE

OTHER_TOKENS = 20
"""Tokens that are told beside the one that was written: as many as OpenAI tells at most."""
_AROUND = " \t\n()[]*:.▁Ġ"
"""What a token may have around its letter."""
BY_TEXTS = "options scored by the likelihood of their texts"
BY_LETTERS = "options scored by the likelihood of their letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodQuestion:
    """A question and its options."""

    question: str
    """As it is asked in a chat, with the lettered options."""
    stem: str
    """What the options continue; empty: only their letters can be scored."""
    options: tuple[str, ...]
    by_length: bool
    """Whether the likelihood of an option is divided by its number of characters."""

    @property
    def letters(self) -> str:
        """Of the options."""
        return LETTERS[: len(self.options)]


def likelihood_clients(
    task: Task, clients: Mapping[WorkerId, Client], without_echo: set[WorkerId]
) -> Mapping[WorkerId, Client]:
    """The clients, which score the options of the task, if that is how it is to be answered.

    Args:
        task: perhaps one with options that are scored.
        clients: of the workers.
        without_echo: workers whose servers do not echo; those that turn out so are added.
    """
    data: dict[str, Any] = json.loads(task.data) if LIKELIHOOD in task.data else {}
    if data.get("scoring") not in {LIKELIHOOD, LIKELIHOOD_BY_LENGTH}:
        return clients
    asked = LikelihoodQuestion(
        question=task.question,
        stem=data.get("stem", ""),
        options=tuple(data["options"]),
        by_length=data["scoring"] == LIKELIHOOD_BY_LENGTH,
    )
    return {
        worker: LikelihoodClient(client, asked, worker, without_echo)
        for worker, client in clients.items()
    }


def scoring_notes(clients: Iterable[Client]) -> str:
    """How the options were scored, for the reason of a grade; empty: they were not."""
    notes = {client.scored for client in clients if isinstance(client, LikelihoodClient)}
    return "; ".join(sorted(notes - {""}))


@final
class LikelihoodClient:
    """A client whose reply to one question is the letter that its model finds the likeliest."""

    def __init__(
        self,
        client: Client,
        asked: LikelihoodQuestion,
        worker: WorkerId,
        without_echo: set[WorkerId],
    ) -> None:
        """Calls nothing yet; any other question is passed on to the client."""
        self._client = client
        self._asked = asked
        self._worker = worker
        self._without_echo = without_echo
        self.scored = ""
        """How the options were scored; empty: they were not yet."""

    def __repr__(self) -> str:
        return f"Likelihood({self._client!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The letter, with the tokens of the calls.

        Raises:
            ClientError: a call gave no usable reply.
            UnsupportedFieldError: the server tells no log probabilities.
        """
        if not request.messages or request.messages[-1].text != self._asked.question:
            return await self._client.complete(request, listener)
        wasted = Reply(text="")
        if self._asked.stem.strip() and self._worker not in self._without_echo:
            first = await self._score_option(request, 0)
            if first.logprobs and not first.text:
                reply = await self._score_texts(request, first)
                return await _deliver_reply(reply, listener)
            self._without_echo.add(self._worker)
            wasted = first
        reply = _with_calls(await self._score_letters(request), wasted)
        return await _deliver_reply(reply, listener)

    async def _score_option(self, request: Request, place: int) -> Reply:
        """The tokens of an option's text, as the server scores them; none: it does not echo."""
        stem = self._asked.stem.rstrip()
        option = (self._asked.stem[len(stem) :] or " ") + self._asked.options[place]
        asked = replace(request, messages=(user_message(stem),), continuation=option)
        try:
            return await self._client.complete(asked)
        except (BadRequestError, UnsupportedFieldError) as error:
            if place:
                raise  # it echoed another option: this one is not to be guessed
            return Reply(text="", usage=error.usage or ZERO_USAGE, cost=error.cost or ZERO_COST)

    async def _score_texts(self, request: Request, first: Reply) -> Reply:
        """The letter of the option whose text is the likeliest."""
        told, values = first, [self._likelihood(first, 0)]
        for place in range(1, len(self._asked.options)):
            found = await self._score_option(request, place)
            values.append(self._likelihood(found, place))
            told = _with_calls(found, told)
        self.scored = BY_TEXTS
        return replace(told, text=self._asked.letters[values.index(max(values))], logprobs=())

    def _likelihood(self, found: Reply, place: int) -> float:
        total = sum(token.logprob for token in found.logprobs)
        return total / (len(self._asked.options[place]) if self._asked.by_length else 1)

    async def _score_letters(self, request: Request) -> Reply:
        """The letter that is the likeliest next token."""
        sampling = replace(request.sampling, max_tokens=1, logprobs=OTHER_TOKENS)
        told = await self._client.complete(replace(request, sampling=sampling))
        if not told.logprobs:
            raise UnsupportedFieldError(
                f"{told.model or repr(self._client)} tells no log probabilities, by which this "
                "task is scored",
                usage=told.usage,
                cost=told.cost,
            )
        self.scored = BY_LETTERS
        found = option_log_likelihoods(told.logprobs[0], self._asked.letters)
        # what it wrote stays its answer where none of the likeliest tokens is an option
        return replace(told, text=max(found, key=lambda one: found[one])) if found else told


def _with_calls(reply: Reply, other: Reply) -> Reply:
    """The reply, with what another one took beside it."""
    return replace(reply, usage=reply.usage + other.usage, cost=reply.cost + other.cost)


async def _deliver_reply(reply: Reply, listener: CallListener) -> Reply:
    """The reply, streamed if the listener wants fragments."""
    if listener.streaming:
        for delta in split_reply(reply, 0):
            await listener.on_delta(delta)
    return reply


def option_log_likelihoods(token: TokenLogprob, letters: Iterable[str]) -> dict[str, float]:
    """The log-likelihood of each letter that may stand in a token's place.

    A letter may be several tokens, with a space before it or brackets around it: their
    probabilities add up. Letters that no told token is are left out.
    """
    told = {other.token: other.logprob for other in (token, *token.others)}
    found: dict[str, float] = {}
    for letter in letters:
        same = [logprob for text, logprob in told.items() if text.strip(_AROUND) == letter]
        if same:
            most = max(same)
            found[letter] = most + math.log(sum(math.exp(one - most) for one in same))
    return found
