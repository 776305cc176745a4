"""A tool of an MCP server that the settings name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import Any, final

from anyio.to_thread import run_sync

from batuta.core import Text, Tool
from batuta.core.tool_classes import classify_tool
from batuta.distribution import install_hint
from batuta.language.material import wrap_fetched
from batuta.tools.source import ToolContext, ToolError, ToolLimits, ToolOutput, call_cost

MAX_ARGUMENT = 20_000
"""Maximum number of characters of a tool's argument."""


@final
class McpTool:
    """One tool of an MCP server, which is started or connected to for each call.

    The server's process or connection ends with the call, even if the call is cancelled.
    """

    def __init__(
        self,
        tool: str,
        argument: str,
        *,
        command: tuple[str, ...] = (),
        url: str = "",
        description: str = "",
        price: Decimal | None = None,
        limits: ToolLimits,
    ) -> None:
        """Create the source; no server is started yet.

        Args:
            tool: the tool's name at the server.
            argument: the name of the tool's argument, a string.
            command: the command that starts a server over stdin and stdout; not used with a `url`.
            url: the URL of a server over HTTP; empty: the `command` is used.
            description: a sentence for models.
            price: dollars per call; None if unknown.
            limits: limits of one call.
        """
        self.name = re.sub(r"\W", "_", tool)
        self.description = description
        self.schema: Mapping[str, Any] = {
            "type": "object",
            "properties": {argument: {"type": "string", "minLength": 1, "maxLength": MAX_ARGUMENT}},
            "required": [argument],
            "additionalProperties": False,
        }
        self.kind = classify_tool(Tool(name=tool, parameters=self.schema))
        self.price = price
        self.limits = limits
        self._tool = tool
        self._command = command
        self._url = url

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the tool and return the text of its result, between tags; other content is dropped.

        Raises:
            ToolError: the package `mcp` is not installed, the server cannot be reached, or the tool
                reports an error.
        """
        if find_spec("mcp") is None:
            raise ToolError(f"the package mcp is not installed: {install_hint('mcp')}")
        await run_sync(import_module, "mcp.client")  # takes a second; a thread keeps the loop free
        from mcp.client import Client  # noqa: PLC0415 - of an extra
        from mcp.types import (  # noqa: PLC0415 - same
            CallToolRequest,
            CallToolRequestParams,
            CallToolResult,
            TextContent,
        )

        from batuta.tools.mcp_bounds import bound_command, bound_url  # noqa: PLC0415 - same

        # Not `client.call_tool`: it checks the result against a schema of the server, in this
        # process, and a pattern in the schema may take hours.
        request = CallToolRequest(
            params=CallToolRequestParams(name=self._tool, arguments=dict(arguments))
        )
        try:
            async with (
                bound_url(self._url) if self._url else bound_command(self._command) as transport
            ):
                async with Client(transport) as client:
                    result = await client.session.send_request(request, CallToolResult)
        except Exception as error:  # noqa: BLE001 - a foreign server may cause any error
            kind = type(_first_error(error)).__name__
            failure = f"the server of the tool {self._tool} could not be called ({kind})"
            raise ToolError(failure, cost=call_cost(self)) from None
        text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
        if result.is_error:
            reason = " ".join(wrap_fetched(text, 300).split())
            failure = f"the tool {self._tool} failed: {reason}"
            raise ToolError(failure, cost=call_cost(self))
        room = max(self.limits.characters - 100, 0)  # the tags
        return ToolOutput(parts=(Text(wrap_fetched(text, room)),))


def _first_error(error: BaseException) -> BaseException:
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return _first_error(inner[0]) if inner else error
