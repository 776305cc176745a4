"""A tool source as a worker of a workflow, called with the words of its step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import final

from batuta.core import CallListener, Delta, Finish, Reply, Request, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.language.prompt import MAX_READ_PAGES
from batuta.language.step_reading import StepWords, find_addresses, read_step
from batuta.tools.search import MAX_QUERY
from batuta.tools.source import ToolError, ToolSource, call_tool
from batuta.usage import ZERO_COST

NO_QUERY = "There is nothing to search for: write the query as this step's subtask."
NO_INPUT = "The tool was not called: write its input as this step's subtask."
NO_ADDRESS = (
    "There is no address to read: write it in this step's subtask, or let the step read one that "
    "names addresses."
)

ReadArguments = Callable[[StepWords], list[dict[str, str]]]
"""Returns the arguments of each call of a step's tool; empty: the tool is not called."""


def read_query(words: StepWords) -> list[dict[str, str]]:
    """Return one search's arguments: the subtask, or else the last reply that the step reads.

    The query is one line, of at most `MAX_QUERY` characters, without quotation marks around it.
    """
    query = " ".join(_input_text(words).split()).strip("\"'` ")[:MAX_QUERY]
    return [{"query": query}] if query else []


def open_argument_reader(argument: str, most: int) -> ReadArguments:
    """Return a reader of a tool's argument: the subtask, else the last reply that the step reads.

    Args:
        argument: the argument's name.
        most: maximum number of characters; the rest is cut off.
    """

    def read_argument(words: StepWords) -> list[dict[str, str]]:
        value = _input_text(words).strip()[:most]
        return [{argument: value}] if value else []

    return read_argument


def _input_text(words: StepWords) -> str:
    """Return the subtask, or else the last reply that the step reads; "" without either."""
    return words.subtask or next(reversed(words.responses), "")


def read_addresses(words: StepWords) -> list[dict[str, str]]:
    """Return a page reader's arguments: the URLs in the subtask, or if it has none, in the replies.

    Only the first `MAX_READ_PAGES` URLs are used.
    """
    addresses = find_addresses(words.subtask)
    if not addresses:
        in_replies = (url for text in words.responses for url in find_addresses(text))
        addresses = tuple(dict.fromkeys(in_replies))
    return [{"url": url} for url in addresses[:MAX_READ_PAGES]]


@final
class ToolWorker:
    """A Client that calls a tool source; an error is its reply, for a model to read.

    After errors alone no other worker takes the step: a language model would invent results. If
    the step is the last, another worker may be asked the whole question.
    """

    def __init__(self, source: ToolSource, read_arguments: ReadArguments, no_input: str) -> None:
        """Create the client; nothing is called yet.

        Args:
            source: the tool.
            read_arguments: returns the arguments of its calls.
            no_input: the reply if there is nothing to call the tool with.
        """
        self._source = source
        self._read_arguments = read_arguments
        self._no_input = no_input

    def __repr__(self) -> str:
        return f"ToolWorker({self._source.name})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Reply with the outputs and errors of the tool's calls; at least one call is counted.

        The text is streamed as one delta. A reply of errors alone has `Finish.NO_OUTPUT` and is not
        streamed, as another worker may give the answer instead.
        """
        calls = self._read_arguments(read_step(request.messages))
        texts, cost, finish = list[str](), ZERO_COST, Finish.NO_OUTPUT
        for arguments in calls:
            try:
                output = await call_tool(self._source, json.dumps(arguments))
            except ToolError as error:
                argument = next(iter(arguments.values()))
                texts.append(f"{argument}: {error}.")
                cost += error.cost
            else:
                texts.append(output.text)
                cost += output.cost
                finish = Finish.STOP
        text = "\n\n".join(texts) or self._no_input
        if listener.streaming and finish is Finish.STOP:
            await listener.on_delta(Delta(text=text))
        usage = Usage(calls=max(len(calls), 1))
        return Reply(text=text, usage=usage, cost=cost, finish=finish, model=self._source.name)


def open_search_worker(source: ToolSource) -> ToolWorker:
    """Return a worker that searches with that source."""
    return ToolWorker(source, read_query, NO_QUERY)


def open_reader_worker(source: ToolSource) -> ToolWorker:
    """Return a worker that reads pages with that source."""
    return ToolWorker(source, read_addresses, NO_ADDRESS)
