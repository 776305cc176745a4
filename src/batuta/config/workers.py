"""Workers of the settings file: their specs and their clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from batuta.clients import (
    HttpTransport,
    RetryPolicy,
    WorkerHealth,
    WorkerSpec,
    find_provider,
    open_client,
    provider_key,
    provider_url,
)
from batuta.clients.catalog import ListedModel, known_worker
from batuta.clients.http_target import Secret, url_host
from batuta.clients.idle_sampling import idle_sampling
from batuta.clients.limits import CallLimiter, RateLimitedClient
from batuta.clients.openai.moderation import ModerationClient
from batuta.clients.providers import (
    FILES,
    LOCAL,
    MCP,
    PYTHON,
    SEARCH,
    TOOL_PROVIDERS,
    DeploymentSpec,
    asks_by_responses,
    has_url_override,
)
from batuta.clients.redis_connections import RedisConnections
from batuta.config.settings import ModerationSetting
from batuta.config.tool_settings import ToolsSetting
from batuta.config.worker_settings import MAX_PROGRAMS, DeploymentSetting, WorkerSetting
from batuta.core import Client, Price, Sampling, Tool, Worker, WorkerId
from batuta.core.tool_classes import ToolClass, classify_tool
from batuta.core.worker import CHANGES, FILE_SEARCH, IMAGE, PROGRAM
from batuta.environment import read_variable
from batuta.errors import ConfigError
from batuta.local.pool import local_spec
from batuta.local.pool_server import LocalClient, pool_server

PROGRAM_DESCRIPTION = (
    "No language model: runs the last Python code block of what it may read, or of its subtask, in "
    "a sandbox without network, and returns what the program printed, or its error. Let a model "
    "write the program in an earlier step."
)
SEARCH_DESCRIPTION = (
    "No language model: searches the web for its subtask, which is the query itself, and returns "
    "addresses with titles, dates and excerpts."
)
READER_DESCRIPTION = (
    "No language model: reads the web pages whose addresses its subtask names, or those that the "
    "steps which it reads have named, and returns their text."
)
MCP_DESCRIPTION = (
    "No language model: calls the tool {tool} with its subtask, which is the tool's input itself; "
    "left empty, with what the step that it reads has written."
)
FILES_DESCRIPTION = (
    "No language model: searches the operator's files for its subtask and returns passages with "
    "their pages or lines. Its subtask is the words to look for."
)
NO_TOOLS = ToolsSetting()
MODERATION = WorkerId("moderation")
"""The id by which keys allow or deny the moderation provider."""


def worker_spec(
    setting: WorkerSetting, environ: Mapping[str, str], tools: ToolsSetting = NO_TOOLS
) -> WorkerSpec:
    """Return the spec of a worker, completed by the known data of its provider and model.

    Raises:
        ConfigError: the provider, a local model or an MCP tool is unknown, the base URL is not a
            URL, the variable with the key is not set or has no valid key, or a setting has no
            effect or cannot be used.
    """
    provider = find_provider(setting.provider)
    own = provider_url(provider, environ) if has_url_override(provider, environ) else ""
    url = setting.base_url.rstrip("/") or own
    _check_address(f"worker {setting.id}", url)
    if setting.provider == PYTHON:
        return program_spec(setting)
    if setting.provider in TOOL_PROVIDERS:
        return tool_spec(setting, tools)
    served_here = local_spec(setting.model) if setting.provider == LOCAL else None
    known = (
        served_here.worker
        if served_here
        else known_worker(setting.provider, ListedModel(name=setting.model), url)
    )
    price = Price(**setting.price.model_dump()) if setting.price else known.price
    worker = Worker(
        id=WorkerId(setting.id),
        model=setting.model,
        description=setting.description or known.description,
        tags=tuple(dict.fromkeys((*known.tags, *setting.tags))),
        context_window=setting.context_window or known.context_window,
        price=price,
        sampling=Sampling(**setting.sampling.model_dump()).with_defaults(known.sampling),
        strength=setting.strength,
        skills=setting.known_skills or known.skills,
        seconds=setting.seconds,
        parameters=known.parameters,
        native_tools=setting.native_tools,
    )
    key = provider_key(provider, environ)
    if setting.key_env:
        key = _read_key(f"worker {setting.id}", setting.key_env, environ)
    spec = WorkerSpec(
        worker=worker,
        provider=setting.provider,
        base_url=url,
        key=key,
        concurrency=min(setting.concurrency, served_here.concurrency)
        if served_here
        else setting.concurrency,
        rpm=setting.rpm,
        tpm=setting.tpm,
        extra_body=setting.extra_body,
        adapt=setting.adapt,
        field_names=setting.field_names,
        openai_api=setting.openai_api,
        think_tags=setting.think_tags,
    )
    check_sampling(spec, spec.worker.sampling, f"worker {setting.id}: sampling")
    return _with_deployments(spec, setting, environ)


def _read_key(owner: str, variable: str, environ: Mapping[str, str]) -> Secret:
    """Return the key in the variable that `key_env` names, or in the file of `{variable}_FILE`.

    Raises:
        ConfigError: neither variable is set, the file cannot be used, or the key is not valid; the
            message names the variable.
    """
    if not (value := read_variable(environ, variable)):
        raise ConfigError(f"{owner} needs the variable {variable}: set it to the key")
    try:
        return Secret(value)
    except ConfigError as error:
        raise ConfigError(f"{owner}: {variable}: {error}") from None


def _check_address(owner: str, url: str) -> None:
    """Check that the base URL, if it is not empty, is an http(s) URL.

    Raises:
        ConfigError: the URL is not; the message names the owner of the setting.
    """
    if not url:
        return
    try:
        url_host(url)
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error}") from None


def _with_deployments(
    spec: WorkerSpec, setting: WorkerSetting, environ: Mapping[str, str]
) -> WorkerSpec:
    """Return the spec with the further deployments of its worker.

    Raises:
        ConfigError: a deployment cannot be used, or cannot run the worker's `native_tools`.
    """
    deployments = tuple(_deployment_spec(spec, each, environ) for each in setting.deployments)
    _check_native(spec, *(deployment.spec for deployment in deployments))
    return replace(spec, deployments=deployments, weight=setting.weight)


def _check_native(*deployments: WorkerSpec) -> None:
    """Check that each deployment's provider can run the tools of `native_tools`.

    Raises:
        ConfigError: a provider cannot run one of the tools.
    """
    for spec in deployments:
        api = find_provider(spec.provider).api
        has_search = api in {"anthropic", "gemini"} or (api == "chat" and asks_by_responses(spec))
        if spec.worker.native_tools and not has_search:
            raise ConfigError(
                f"worker {spec.worker.id}: native_tools needs a provider of Anthropic's or "
                "Gemini's API, or `openai_api = 'responses'`"
            )


def check_sampling(spec: WorkerSpec, sampling: Sampling, name: str) -> None:
    """Check that each sampling parameter is sent to the model and supported by the provider.

    Args:
        spec: the worker.
        sampling: the sampling parameters.
        name: the setting that contains them, for the message.

    Raises:
        ConfigError: a parameter would have no effect; the message names the first one.
    """
    if sampling.is_empty:
        return
    for field in idle_sampling(spec, sampling):
        raise ConfigError(f"{name}.{field} has no effect on {spec.worker.model}: leave it out")


def _deployment_spec(
    spec: WorkerSpec, setting: DeploymentSetting, environ: Mapping[str, str]
) -> DeploymentSpec:
    """Return the spec of another deployment of the worker.

    Raises:
        ConfigError: the provider is unknown, the base URL is not a URL, or the key is not set or
            not valid.
    """
    other = setting.provider not in {None, spec.provider}
    # Without `key_env`, another provider does not get the worker's key.
    key = provider_key(find_provider(setting.provider or ""), environ) if other else spec.key
    if setting.key_env:
        key = _read_key(f"worker {spec.worker.id}", setting.key_env, environ)
    worker = replace(spec.worker, model=setting.model or spec.worker.model)
    provider, url = setting.provider or spec.provider, setting.base_url.rstrip("/")
    _check_address(f"worker {spec.worker.id}", url)
    deployment = replace(
        spec,
        worker=worker,
        provider=provider,
        base_url=url,
        key=key,
        concurrency=setting.concurrency,
        rpm=setting.rpm,
        tpm=setting.tpm,
    )
    return DeploymentSpec(spec=deployment, weight=setting.weight)


def open_moderation(
    setting: ModerationSetting | None, http: HttpTransport, environ: Mapping[str, str]
) -> ModerationClient | None:
    """Return the client of the moderation provider; None if none is set.

    Raises:
        ConfigError: the provider is unknown or has another API, its base URL is missing or not a
            URL, or the variable of `key_env` is not set or has no valid key.
    """
    if setting is None:
        return None
    provider = find_provider(setting.provider)
    url = setting.base_url or provider_url(provider, environ)
    if not url or provider.api != "chat":
        raise ConfigError(
            "moderation needs a provider of OpenAI's API and, if that has no usual URL, a base_url"
        )
    _check_address("moderation", url)
    key = provider_key(provider, environ)
    if setting.key_env:
        key = _read_key("moderation", setting.key_env, environ)
    worker = Worker(id=MODERATION, model=setting.model, tags=setting.tags)
    return ModerationClient(worker, http, base_url=url, key=key)


def program_spec(setting: WorkerSetting) -> WorkerSpec:
    """Return the spec of a worker that runs code; it has no model and is free."""
    worker = Worker(
        id=WorkerId(setting.id),
        model=setting.model,
        description=setting.description or PROGRAM_DESCRIPTION,
        tags=tuple(dict.fromkeys((PROGRAM, "local", *setting.tags))),
        price=Price(input=Decimal(0), output=Decimal(0)),
        seconds=setting.seconds,
    )
    return WorkerSpec(
        worker=worker, provider=PYTHON, concurrency=min(setting.concurrency, MAX_PROGRAMS)
    )


def tool_spec(setting: WorkerSetting, tools: ToolsSetting) -> WorkerSpec:
    """Return the spec of a worker that searches the web or files, reads pages or calls an MCP tool.

    Its price is None if the price of a search or of the MCP tool's call is not known.

    Raises:
        ConfigError: the worker's MCP tool is not in the settings.
    """
    free = Decimal(0)
    call, description = free, READER_DESCRIPTION
    tags = (FILE_SEARCH if setting.provider == FILES else setting.provider, *setting.tags)
    if setting.provider == SEARCH:
        call = tools.search.known_price if tools.search else None
        description = SEARCH_DESCRIPTION
    elif setting.provider == MCP:
        server = tools.mcp.get(setting.model)
        if server is None:
            raise ConfigError(f"worker {setting.id}: there is no [tools.mcp.{setting.model}]")
        call, description = server.price, MCP_DESCRIPTION.format(tool=server.tool)
        called = Tool(name=server.tool, parameters={"properties": {server.argument: {}}})
        if classify_tool(called) is ToolClass.CHANGE:
            tags = (*tags, CHANGES)
    elif setting.provider == FILES:
        description = FILES_DESCRIPTION
    worker = Worker(
        id=WorkerId(setting.id),
        model=setting.model,
        description=setting.description or description,
        tags=tuple(dict.fromkeys(tags)),
        price=None if call is None else Price(input=free, output=free, call=call),
        seconds=setting.seconds,
    )
    return WorkerSpec(worker=worker, provider=setting.provider, concurrency=setting.concurrency)


def open_worker_clients(
    specs: tuple[WorkerSpec, ...],
    http: HttpTransport,
    health: Mapping[WorkerId, WorkerHealth],
    shared: RedisConnections | None = None,
    environ: Mapping[str, str] = os.environ,
    tools: ToolsSetting = NO_TOOLS,
) -> dict[WorkerId, Client]:
    """Return the workers' clients, by worker id.

    With `shared` all processes share the limits of the providers' workers in Redis; else, and for
    other workers, each process counts separately. A worker without an entry in `health` has no
    breaker.

    Raises:
        ConfigError: a worker lacks a key, a base URL, an extra or the settings of its tool, has a
            setting that its provider does not support, or its local model was not pulled.
    """
    return {
        spec.worker.id: open_worker_client(
            spec,
            http,
            health.get(spec.worker.id),
            shared=shared,
            environ=environ,
            tools=tools,
        )
        for spec in specs
    }


def open_worker_client(
    spec: WorkerSpec,
    http: HttpTransport,
    health: WorkerHealth | None = None,
    *,
    shared: RedisConnections | None = None,
    environ: Mapping[str, str] = os.environ,
    attempts: int = RetryPolicy().attempts,
    tools: ToolsSetting = NO_TOOLS,
) -> Client:
    """Return a worker's client: of a provider, of a model that Batuta serves, or of a tool.

    A call of a provider is tried at most `attempts` times. `health`, if given, opens the breaker of
    a model; programs and tools have none.

    Raises:
        ConfigError: the worker lacks a key, a base URL, an extra or the settings of its tool, has a
            setting that its provider does not support, or its local model was not pulled.
    """
    if spec.provider == PYTHON:
        from batuta.sandbox.python_worker import PythonWorker  # noqa: PLC0415 - 0.3 s

        return RateLimitedClient(PythonWorker(), CallLimiter(spec.concurrency, None, None))
    if spec.provider in TOOL_PROVIDERS:
        from batuta.config.tools import open_tool_client  # noqa: PLC0415 - loaded where it is used

        client = open_tool_client(spec, tools, http, environ)
        return RateLimitedClient(client, CallLimiter(spec.concurrency, None, None))
    if spec.provider == LOCAL:
        return LocalClient(spec, http, health, pool_server(http, environ))
    policy = RetryPolicy(attempts=attempts)
    return open_client(spec, http, policy=policy, health=health, shared=shared)


def divide_limits(specs: tuple[WorkerSpec, ...], processes: int) -> tuple[WorkerSpec, ...]:
    """Return the specs with the limits of models divided by the number of processes, rounded down.

    Raises:
        ConfigError: a limit is smaller than the number of processes.
    """
    return tuple(_divide_spec(spec, processes) if _calls_provider(spec) else spec for spec in specs)


def _calls_provider(spec: WorkerSpec) -> bool:
    """Return True if the worker is a model, also one that draws, and not a program or a tool."""
    return spec.worker.is_model or IMAGE in spec.worker.tags


def _divide_spec(spec: WorkerSpec, processes: int) -> WorkerSpec:
    parts = {
        name: limit // processes
        for name in ("concurrency", "rpm", "tpm")
        if (limit := getattr(spec, name)) is not None
    }
    for name, part in parts.items():
        if part < 1:
            raise ConfigError(
                f"worker {spec.worker.id}: {name} = {getattr(spec, name)} cannot be divided among "
                f"{processes} processes; set BATUTA_REDIS to share the limits in Redis"
            )
    deployments = tuple(
        replace(each, spec=_divide_spec(each.spec, processes)) for each in spec.deployments
    )
    return replace(spec, deployments=deployments, **parts)
