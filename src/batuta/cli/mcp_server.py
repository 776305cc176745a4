"""`batuta mcp`: an MCP server on stdin and stdout with the tools ask, plan and runs.

With --port the command starts the API instead, with the MCP endpoint of `batuta.gateway.mcp`.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from time import localtime, strftime
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from batuta.cli.options import MOST_USD, PoolOptions, with_option_groups
from batuta.config.load import store_target
from batuta.config.settings import LogFormat
from batuta.core import Outcome, Run, Workflow
from batuta.core.formatting import format_cost, format_seconds
from batuta.distribution import install_hint, package_version
from batuta.errors import ConfigError
from batuta.session.session import Session
from batuta.store import RunSummary, Store

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MAX_RUNS = 50
"""Maximum number of runs that one call of `runs` lists."""
MAX_QUESTION = 1_000_000
"""Maximum number of characters of a question, which the host's model may have written."""
_INSTRUCTIONS = (
    "Batuta answers a question by a workflow of several language models. ask answers; plan shows "
    "the workflow and what it would cost, and calls no model but the conductor; runs lists the "
    "latest runs."
)


@with_option_groups
def mcp_command(
    max_cost: Annotated[
        float | None,
        typer.Option(min=0, max=MOST_USD, help="Maximum cost of one question, in dollars."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve over HTTP, at /v1/mcp of the API; 0: any free port."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; only with --port.")
    ] = "127.0.0.1",
    *,
    pool: PoolOptions,
) -> None:
    """Offer ask, plan and runs to an MCP host: over stdin and stdout, or HTTP with --port."""
    if find_spec("mcp") is None:
        raise ConfigError(f"batuta mcp needs the package mcp: {install_hint('mcp')}")
    pool.pull_missing()
    if port is None:
        anyio.run(_serve_stdio, pool.pool, pool.conductor, max_cost)
    else:
        _serve_http(host, port, pool, max_cost)


def _serve_http(host: str, port: int, pool: PoolOptions, max_cost: float | None) -> None:
    """Serve the API with an MCP endpoint, whose tools call the API with their caller's key."""
    from batuta.gateway import LOOP_OPTIONS  # noqa: PLC0415 - most of the start-up time
    from batuta.gateway.assemble import ServeOptions, run_configured_server  # noqa: PLC0415
    from batuta.gateway.mcp.endpoint import McpOptions  # noqa: PLC0415
    from batuta.gateway.telemetry.logs import start_logs  # noqa: PLC0415
    from batuta.store.process_lock import lock_server_store  # noqa: PLC0415

    start_logs(LogFormat.QUIET)
    options = ServeOptions(
        pool=pool.pool,
        conductor=pool.conductor,
        history=None,
        cascade=None,
        checker=None,
        folders=(),
    )
    offer = McpOptions(max_cost=max_cost)
    serve = partial(run_configured_server, host, port, options, offer)
    with lock_server_store(store_target()):
        anyio.run(serve, backend_options=LOOP_OPTIONS)


async def _serve_stdio(pool: str | None, conductor: str | None, max_cost: float | None) -> None:
    async with Session(pool, conductor=conductor, store=True) as session:
        await build_server(session, store_target(), max_cost).run_stdio_async()


def build_server(session: Session, target: str, max_cost: float | None = None) -> MCPServer:
    """Return an MCP server whose tools ask the session.

    Args:
        session: an open session.
        target: the path or URL of the database of runs.
        max_cost: maximum cost of one question, in dollars; None for no limit of the server's own.
    """
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - of an extra
    from mcp.types import ToolAnnotations  # noqa: PLC0415 - same

    server = MCPServer(
        "batuta", version=package_version(), instructions=_INSTRUCTIONS, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True)

    @server.tool(description="Answer a question by a workflow of several language models.")
    async def ask(question: str, max_cost_usd: float | None = None) -> str:  # pyright: ignore[reportUnusedFunction]
        run = await _run_question(session, question, _stricter_cost(max_cost, max_cost_usd))
        return describe_answer(run)

    @server.tool(
        description="Show the workflow that a question would get, and what it is expected to cost.",
        annotations=reads,
    )
    async def plan(question: str) -> str:  # pyright: ignore[reportUnusedFunction]
        run = await _run_question(session, question, max_cost, dry_run=True)
        return describe_plan(run)

    @server.tool(description="List the latest runs, newest first.", annotations=reads)
    async def runs(limit: int = 10) -> str:  # pyright: ignore[reportUnusedFunction]
        async with Store.open(target) as store:
            listed = await store.list(limit=min(max(limit, 1), MAX_RUNS))
        return "\n".join(map(describe_summary, listed)) or "There are no runs yet."

    return server


async def _run_question(
    session: Session, question: str, max_cost: float | None, *, dry_run: bool = False
) -> Run:
    """Ask the session.

    Raises:
        ToolError: the question is empty or too long, or there is no answer; the host shows the
            message.
        StoreError: the run cannot be stored.
    """
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - of an extra

    if not question.strip() or len(question) > MAX_QUESTION:
        raise ToolError(f"a question must have 1 to {MAX_QUESTION} characters")
    if max_cost is None:
        run = await session.ask(question, dry_run=dry_run)
    else:
        run = await session.ask(question, dry_run=dry_run, max_cost=max_cost)
    if run.answer is None and run.outcome is not Outcome.PLANNED:
        raise ToolError(run.error or "there is no answer")
    return run


def _stricter_cost(first: float | None, second: float | None) -> float | None:
    given = [cost for cost in (first, second) if cost is not None]
    return min(given) if given else None


def describe_answer(run: Run) -> str:
    """Return the answer, and a line about its run."""
    steps, cost = len(run.steps), format_cost(run.cost)
    about = f"{run.id}: {steps} step{'' if steps == 1 else 's'}, {cost}"
    return f"{run.answer}\n\n[{about}, {format_seconds(run.seconds)}, {run.outcome.value}]"


def describe_plan(run: Run) -> str:
    """Return a planned workflow, one line per step, and its estimated tokens and cost."""
    flow = run.rounds[-1].workflow if run.rounds else None
    lines = _step_lines(flow) if flow is not None else ["No workflow could be planned."]
    if run.expected is not None:
        tokens = f"{run.expected.usage.total} tokens"
        lines.append(f"Expected: {tokens}, {format_cost(run.expected.cost)}.")
    return "\n".join(lines)


def _step_lines(flow: Workflow) -> list[str]:
    lines: list[str] = []
    for number, step in enumerate(flow.steps, 1):
        reads = ", ".join(str(index + 1) for index in step.access)
        reading = f" (reads {reads})" if reads else ""
        lines.append(
            f"{number}. {step.worker}{reading}: {' '.join(step.subtask.split()) or 'the question'}"
        )
    return lines


def describe_summary(summary: RunSummary) -> str:
    """Return a stored run in one line."""
    when = strftime("%Y-%m-%d %H:%M", localtime(summary.created))
    asked = " ".join(summary.question_preview.split())[:100]
    return f"{summary.id} {when} {summary.outcome.value} {format_cost(summary.cost)} {asked}"
