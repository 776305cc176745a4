"""Questions with options that are scored by likelihood: which letter is the likeliest next token.

A worker that is asked such a question as it stands writes one token, and its server says how
probable the tokens were that could have stood there (`logprobs` of OpenAI's dialect: vLLM, SGLang,
llama.cpp and OpenAI give them). The answer is the letter of the likeliest option, whatever was
written. Other calls of a workflow are made as always.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, final

from batuta.clients.scripted_client import split_reply
from batuta.core import CallListener, Client, Reply, Request, Task, TokenLogprob, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import UnsupportedFieldError
from batuta.tasks.datasets.dataset import LETTERS
from batuta.tasks.datasets.task_files import LIKELIHOOD

OTHER_TOKENS = 20
"""Tokens that are told beside the one that was written: as many as OpenAI tells at most."""
_AROUND = " \t\n()[]*:.▁Ġ"
"""What a token may have around its letter."""


def likelihood_clients(task: Task, clients: Mapping[WorkerId, Client]) -> Mapping[WorkerId, Client]:
    """The clients, which score the options of the task, if that is how it is to be answered."""
    data: dict[str, Any] = json.loads(task.data) if LIKELIHOOD in task.data else {}
    if data.get("scoring") != LIKELIHOOD:
        return clients
    letters = LETTERS[: len(data["options"])]
    return {
        worker: LikelihoodClient(client, task.question, letters)
        for worker, client in clients.items()
    }


@final
class LikelihoodClient:
    """A client whose reply to one question is the letter that its model finds the likeliest."""

    def __init__(self, client: Client, question: str, letters: str) -> None:
        """Calls nothing yet.

        Args:
            client: the model.
            question: the text whose options are scored; any other is passed on.
            letters: of the options.
        """
        self._client = client
        self._question = question
        self._letters = letters

    def __repr__(self) -> str:
        return f"Likelihood({self._client!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The letter, with the tokens of the call.

        Raises:
            ClientError: the call gave no usable reply.
            UnsupportedFieldError: the server tells no log probabilities.
        """
        if not request.messages or request.messages[-1].text != self._question:
            return await self._client.complete(request, listener)
        sampling = replace(request.sampling, max_tokens=1, logprobs=OTHER_TOKENS)
        told = await self._client.complete(replace(request, sampling=sampling))
        if not told.logprobs:
            raise UnsupportedFieldError(
                f"{told.model or repr(self._client)} tells no log probabilities, by which this "
                "task is scored",
                usage=told.usage,
                cost=told.cost,
            )
        found = option_log_likelihoods(told.logprobs[0], self._letters)
        # what it wrote stays its answer where none of the likeliest tokens is an option
        reply = replace(told, text=max(found, key=lambda one: found[one])) if found else told
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
