"""Clients that replay recorded answers."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import final

import anyio.lowlevel

from batuta.core import CallListener, Cost, Delta, Reply, Request, Role, Usage, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.core.token_estimate import estimate_usage
from batuta.errors import NotRecordedError
from batuta.lab.tasks.recorded.outcomes import RecordedOutcomes, SampleIndex
from batuta.usage import usage_cost

SIMULATED_PREFIX = "simulated/"
"""The prefix of the model's name in a reply that the record does not have for that prompt."""


@final
class ReplayPool:
    """Makes clients that replay a record; each run needs new clients."""

    def __init__(self, record: RecordedOutcomes, *, simulate: bool = False) -> None:
        """Take the record.

        With `simulate`, the reply to a prompt that contains a recorded question among other lines,
        such as a check or a repair, is a recorded answer of the model to that question, and the
        model's name in the reply gets `SIMULATED_PREFIX`. Without `simulate`, such a call is an
        error.
        """
        self.record = record
        self.simulate = simulate
        self._by_first_line: dict[str, list[str]] = {}
        for text in record.positions if simulate else ():
            self._by_first_line.setdefault(text.partition("\n")[0], []).append(text)

    def __repr__(self) -> str:
        return f"ReplayPool({self.record!r})"

    def clients(self) -> dict[WorkerId, RecordedModelClient]:
        """Return a new client for each model, which has used none of its answers."""
        models = enumerate(self.record.models)
        return {WorkerId(model): RecordedModelClient(self, m) for m, model in models}

    def locate_question(self, request: Request) -> tuple[int | None, bool]:
        """Return the question's index or None, and whether the request is the question alone."""
        users = [m.text.strip() for m in request.messages if m.role is Role.USER]
        text = users[-1] if users else ""
        if len(request.messages) == 1 and text in self.record.positions:
            return self.record.positions[text][0], True
        found = self._find_question(text)
        return (None if found is None else self.record.positions[found][0]), False

    def _find_question(self, prompt: str) -> str | None:
        """Return the longest recorded question that begins at a line of the prompt, or None."""
        found: list[str] = []
        start = 0
        for line in prompt.split("\n"):
            candidates = self._by_first_line.get(line, ())
            found += [text for text in candidates if prompt.startswith(text, start)]
            start += len(line) + 1
        return max(found, key=len, default=None)


@final
class RecordedModelClient:
    """A client that replays a model of a record.

    Requests for a question with equal seeds get the same sample; requests with different seeds, or
    without a seed, never do. The seed modulo the number of samples selects the sample; if it is
    used, the next unused sample is taken. If all are used, a request that is not a repetition is an
    error.
    """

    def __init__(self, pool: ReplayPool, model: int) -> None:
        self._pool = pool
        self._record = pool.record
        self._model = model
        self._given: dict[int, dict[object, int]] = {}

    def __repr__(self) -> str:
        return f"RecordedModelClient({self._record.models[self._model]!r} of {self._record.name})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return a recorded answer with its tokens and dollars.

        Missing tokens are estimated and marked as such; a call without dollars is unpriced.

        Raises:
            NotRecordedError: the question is not in the record, or all answers to it were used.
        """
        await anyio.lowlevel.checkpoint()
        question, bare = self._pool.locate_question(request)
        if question is None:
            raise NotRecordedError(
                f"{self._record.name} has only answers to its own questions, word for word: "
                "plan steps without a subtask, or allow simulated replies (--simulate)"
            )
        index = (question, self._model, self._draw_sample(question, request.sampling.seed))
        reply = self._build_reply(index, request)
        if not bare:
            reply = replace(reply, model=SIMULATED_PREFIX + reply.model)
        if listener.streaming:
            await listener.on_delta(Delta(text=reply.text))
        return reply

    def _draw_sample(self, question: int, seed: int | None) -> int:
        recorded = self._record.recorded_samples(question, self._model)
        given = self._given.setdefault(question, {})
        key: object = object() if seed is None else seed
        if key not in given:
            start = (seed or 0) % max(len(recorded), 1)
            rotated = recorded[start:] + recorded[:start]
            unused = next((sample for sample in rotated if sample not in given.values()), None)
            if unused is None:
                raise NotRecordedError(
                    f"{self._record.models[self._model]} has {len(recorded)} recorded answers to "
                    f"{self._record.tasks[question].id}, and none is left: ask for fewer "
                    "samples, or use a new client for each run"
                )
            given[key] = unused
        return given[key]

    def _build_reply(self, index: SampleIndex, request: Request) -> Reply:
        text, model = self._record.reply(index), self._record.models[self._model]
        spent = self._record.usage
        usage, usd = None, math.nan
        if spent is not None:
            usd = float(spent.usd_qms[index])
            tokens = int(spent.input_qms[index]), int(spent.output_qms[index])
            if min(tokens) >= 0:
                usage = Usage(calls=1, input=tokens[0], output=tokens[1])
        usage = usage or estimate_usage(request, Reply(text=text))
        cost = usage_cost(usage, None) if math.isnan(usd) else Cost(Decimal(str(usd)))
        return Reply(text=text, usage=usage, cost=cost, model=model)
