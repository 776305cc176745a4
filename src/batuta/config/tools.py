"""Opens the tools of [tools]: web search, page fetching, code execution, file search and MCP.

A new tool source is registered in `open_served_tools` or `open_tool_client`, with a table in
`config.tool_settings`, a description in `config.workers`, its provider in
`clients.providers.TOOL_PROVIDERS` and a rule in `language.prompt`. This module is imported only if
a worker or a served tool needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from batuta.clients import HttpTransport, Secret, WorkerSpec
from batuta.clients.http_target import url_host
from batuta.clients.providers import FILES, MCP, SEARCH
from batuta.clients.public_addresses import PublicResolver
from batuta.config.tool_settings import (
    FileSearchSetting,
    McpSetting,
    PythonSetting,
    ReaderSetting,
    SearchSetting,
    ToolsSetting,
)
from batuta.core import Client
from batuta.core.server_tools import RequestedTool, ServerTools
from batuta.encoder import SentenceEncoder, open_encoder
from batuta.environment import read_variable
from batuta.errors import ConfigError
from batuta.sandbox.program import MEGABYTE
from batuta.tools.code import CodeInterpreter
from batuta.tools.domains import DomainRules
from batuta.tools.file_search import FileSearch, FolderIndex, TenantIndexes
from batuta.tools.mcp_source import MAX_ARGUMENT, McpTool
from batuta.tools.pages import WebFetch
from batuta.tools.search import WebSearch
from batuta.tools.search_engines import ENGINES, EngineAddress
from batuta.tools.server_tool import NativeOffer, OfferedTool, open_server_tools
from batuta.tools.source import ToolLimits
from batuta.tools.worker import (
    NO_INPUT,
    ToolWorker,
    open_argument_reader,
    open_reader_worker,
    open_search_worker,
)

FOLDER = "folder"
"""The id by which a request for file search names the folder of [tools.files]."""
MAX_USES = 5
"""Maximum number of calls of a tool within one model call, unless the settings set another."""
NO_SEARCH = 'it needs [tools.search] with an engine, such as engine = "searxng" and its base_url'


def open_search(
    setting: SearchSetting | None, http: HttpTransport, environ: Mapping[str, str] = os.environ
) -> WebSearch:
    """Open the web search of the settings.

    Raises:
        ConfigError: no search is configured, its base_url is not a URL, or its key is not set or
            not valid.
    """
    if setting is None:
        raise ConfigError(NO_SEARCH)
    make_engine, usual_url, usual_key = ENGINES[setting.engine]
    variable = setting.key_env or usual_key
    value = read_variable(environ, variable) if variable else ""
    if variable and not value:
        raise ConfigError(f"[tools.search] needs the variable {variable}: set it to the key")
    try:
        key = Secret(value)
    except ConfigError as error:
        raise ConfigError(f"[tools.search] {variable}: {error}") from None
    url = (setting.base_url or usual_url).rstrip("/")
    try:
        url_host(url)
    except ConfigError:
        raise ConfigError(
            "[tools.search] base_url must start with http:// or https:// and name a host"
        ) from None
    return WebSearch(
        make_engine(EngineAddress(http=http, url=url, key=key)),
        price=setting.known_price,
        results=setting.results,
        domains=DomainRules(allow=setting.allow_domains, deny=setting.deny_domains),
        limits=ToolLimits(seconds=setting.timeout_s),
    )


def open_served_tools(
    tools: ToolsSetting, http: HttpTransport, environ: Mapping[str, str], *, native: bool = False
) -> ServerTools:
    """Open the tools that models call while they answer.

    Args:
        tools: the settings.
        http: the transport of search and pages.
        environ: the environment variables, with the keys.
        native: whether the providers of some workers run their own web search.

    Raises:
        ConfigError: the settings of a tool cannot be used.
    """
    offered: list[OfferedTool] = []
    if tools.search is not None and tools.search.server_tool:
        search = open_search(tools.search, http, environ)
        offered.append(OfferedTool(lambda _: search, tools.search.max_uses or MAX_USES))
    if tools.reader.server_tool:
        fetch = open_fetch(tools.reader, http)
        offered.append(OfferedTool(lambda _: fetch, tools.reader.max_uses or MAX_USES))
    if tools.python is not None and tools.python.server_tool:
        offered.append(
            OfferedTool(partial(_open_code, tools.python), tools.python.max_uses or MAX_USES)
        )
    if tools.files is not None and tools.files.server_tool:
        uses = tools.files.max_uses or MAX_USES
        offered.append(OfferedTool(_file_search_opener(tools.files), uses))
    return open_server_tools(offered, _native_offer(tools.search) if native else None)


def _native_offer(setting: SearchSetting | None) -> NativeOffer:
    """Return the offer of providers' own search, within the limits of [tools.search]."""
    if setting is None:
        return NativeOffer(max_uses=MAX_USES)
    domains = DomainRules(allow=setting.allow_domains, deny=setting.deny_domains)
    return NativeOffer(max_uses=setting.max_uses or MAX_USES, domains=domains)


def _file_search_opener(setting: FileSearchSetting) -> Callable[[RequestedTool | None], FileSearch]:
    """Return a function that opens the file search of a request, which may name its files."""
    indexes = TenantIndexes(encoder=_open_encoder(setting))
    folder = _open_folder(setting)

    def open_source(requested: RequestedTool | None) -> FileSearch:
        named = requested.file_ids if requested else ()
        return FileSearch(
            indexes,
            files=requested.files if requested else None,
            folder=folder if FOLDER in named else None,
            results=setting.results,
            limits=ToolLimits(seconds=setting.timeout_s),
        )

    return open_source


def _open_folder(setting: FileSearchSetting) -> FolderIndex | None:
    """Return the index of the folder; None: no folder is set.

    Raises:
        ConfigError: the folder does not exist, or the encoder is not installed.
    """
    if not setting.folder:
        return None
    folder = Path(setting.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"[tools.files] folder: there is no folder {folder}")
    return FolderIndex(folder, _open_encoder(setting))


def _open_encoder(setting: FileSearchSetting) -> SentenceEncoder | None:
    """Return the sentence encoder for embedding search; None if only keyword search is used."""
    if not setting.vectors:
        return None
    try:
        return open_encoder()
    except ConfigError as error:
        raise ConfigError(f"[tools.files] vectors: {error}") from None


def open_files_worker(setting: FileSearchSetting | None) -> ToolWorker:
    """Open the worker that searches the folder.

    Raises:
        ConfigError: no folder is set, the folder does not exist, or the encoder is not installed.
    """
    folder = _open_folder(setting) if setting is not None else None
    if setting is None or folder is None:
        raise ConfigError("it needs [tools.files] with a folder")
    limits = ToolLimits(seconds=setting.timeout_s)
    source = FileSearch(TenantIndexes(), folder=folder, results=setting.results, limits=limits)
    return open_search_worker(source)


def _open_code(setting: PythonSetting, requested: RequestedTool | None) -> CodeInterpreter:
    return CodeInterpreter(
        seconds=setting.timeout_s,
        memory=setting.memory_mb * MEGABYTE,
        characters=setting.max_characters,
        python=setting.interpreter or sys.executable,
        files=requested.files if requested else None,
    )


def open_fetch(setting: ReaderSetting, http: HttpTransport) -> WebFetch:
    """Open page fetching; only public addresses and `private_hosts` can be reached."""
    private = tuple(sorted(host.lower() for host in setting.private_hosts))

    def open_transport() -> HttpTransport:
        return HttpTransport(
            idle=setting.timeout_s,
            max_reply_bytes=setting.max_bytes,
            resolver=PublicResolver(private),
        )

    return WebFetch(
        http.companion(f"pages {private} {setting.timeout_s}", open_transport),
        domains=DomainRules(allow=setting.allow_domains, deny=setting.deny_domains),
        private_hosts=private,
        max_bytes=setting.max_bytes,
        limits=ToolLimits(seconds=setting.timeout_s, characters=setting.max_characters),
    )


def open_tool_client(
    spec: WorkerSpec, tools: ToolsSetting, http: HttpTransport, environ: Mapping[str, str]
) -> Client:
    """Open the client of a worker that searches, reads pages or calls an MCP tool.

    Raises:
        ConfigError: the settings of the worker's tool cannot be used.
    """
    if spec.provider in {SEARCH, FILES}:
        try:
            if spec.provider == FILES:
                return open_files_worker(tools.files)
            return open_search_worker(open_search(tools.search, http, environ))
        except ConfigError as error:
            raise ConfigError(f"worker {spec.worker.id}: {error}") from None
    if spec.provider == MCP:
        return open_mcp_worker(tools.mcp[spec.worker.model], spec.worker.description)
    return open_reader_worker(open_fetch(tools.reader, http))


def open_mcp_worker(setting: McpSetting, description: str) -> ToolWorker:
    """Open the worker that calls a tool of an MCP server."""
    source = McpTool(
        setting.tool,
        setting.argument,
        command=setting.command,
        url=setting.url,
        description=description,
        price=setting.price,
        limits=ToolLimits(seconds=setting.timeout_s, characters=setting.max_characters),
    )
    return ToolWorker(source, open_argument_reader(setting.argument, MAX_ARGUMENT), NO_INPUT)
