"""The settings of the tools that Batuta runs: search, web pages, Python, files and MCP."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from batuta.config.settings_file import StrictModel, VariableName

Domain = Annotated[str, Field(min_length=1, max_length=300)]
"""A domain. In lists of allowed and denied ones it includes its subdomains, and may have a path."""


class ServedSetting(StrictModel):
    """A tool that clients may request as a server tool."""

    server_tool: bool = False
    """Whether a client's request may let the answering model call the tool."""
    max_uses: int | None = Field(default=None, ge=1, le=50)
    """Maximum number of calls of the tool within one model call; None: 5."""

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        if not self.server_tool:
            self.refuse_settings(("max_uses",), "needs `server_tool = true`")
        return self


class SearchSetting(ServedSetting):
    """The search engine, and which results may be shown."""

    engine: Literal["searxng", "brave", "tavily", "exa"]
    base_url: str = ""
    """The URL of the engine's API; empty: the engine's usual one, which SearXNG does not have."""
    key_env: VariableName = ""
    """The environment variable with the key; empty: the engine's usual one."""
    price: Decimal | None = Field(default=None, ge=0)
    """Dollars per search; None: unknown, or 0 for SearXNG."""
    results: int = Field(default=8, ge=1, le=20)
    """Maximum number of results of one search."""
    timeout_s: float = Field(default=20.0, gt=0)
    """Seconds that one search may take."""
    allow_domains: tuple[Domain, ...] = ()
    """The domains from which results are shown; empty: all."""
    deny_domains: tuple[Domain, ...] = ()
    """Domains from which no results are shown, even if they are allowed."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.engine == "searxng":
            self.refuse_settings(("key_env",), "does not apply to SearXNG, which has no key")
            if not self.base_url:
                raise ValueError('`engine = "searxng"` needs the `base_url` of its server')
        return self

    @property
    def known_price(self) -> Decimal | None:
        """Dollars per search, 0 for SearXNG by default; None: unknown."""
        return Decimal(0) if self.price is None and self.engine == "searxng" else self.price


class ReaderSetting(ServedSetting):
    """Which pages may be read."""

    allow_domains: tuple[Domain, ...] = ()
    """The domains that may be read; empty: all."""
    deny_domains: tuple[Domain, ...] = ()
    """Domains that must not be read, even if they are allowed."""
    private_hosts: tuple[Domain, ...] = ()
    """Hosts (`host` or `host:port`) of private networks that may be read besides public hosts."""
    max_bytes: int = Field(default=5 << 20, ge=1000)
    """Maximum size of a page in bytes; a larger one is refused."""
    max_characters: int = Field(default=20_000, ge=500)
    """Maximum number of characters of a page's text; the rest is dropped."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that one page may take."""


class PythonSetting(ServedSetting):
    """The sandbox for programs that models run while they answer."""

    timeout_s: float = Field(default=20.0, gt=0, le=600)
    """Seconds that the programs of one call may run: the new one, and earlier ones run again."""
    memory_mb: int = Field(default=512, ge=64)
    """Maximum memory of all processes of a program together."""
    max_characters: int = Field(default=16_000, ge=500)
    """Maximum number of characters of a program's output; the rest is dropped."""
    interpreter: str = ""
    """The Python interpreter that runs programs, with its packages; empty: Batuta's own."""

    @model_validator(mode="after")
    def _check_enabled(self) -> Self:
        if not self.server_tool:
            raise ValueError("it needs `server_tool = true`: workers have their own limits")
        return self


class McpSetting(StrictModel):
    """A tool of an MCP server; workers with `provider = "mcp"` call it."""

    tool: str = Field(min_length=1, max_length=200)
    """The tool's name on the server."""
    argument: str = Field(default="query", min_length=1, max_length=200)
    """The argument that receives the subtask of a step."""
    command: tuple[str, ...] = ()
    """The command that starts a stdio server; empty: the server has a `url`."""
    url: str = ""
    """The URL of an HTTP server; empty: the server has a `command`."""
    price: Decimal | None = Field(default=None, ge=0)
    """Dollars per call; None: unknown."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that one call may take, including the start of the server."""
    max_characters: int = Field(default=20_000, ge=500)
    """Maximum number of characters of the tool's result; the rest is dropped."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server needs a `command` or a `url`, and not both")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("`url` must start with http:// or https://")
        return self


class FileSearchSetting(ServedSetting):
    """How files are searched: the files of a folder, and the files that clients upload."""

    folder: str = ""
    """The folder to search; empty: only uploaded files are searched."""
    vectors: bool = False
    """Whether embedding search is used besides keyword search; needs the extra `encoder`."""
    results: int = Field(default=8, ge=1, le=20)
    """Maximum number of passages of one search."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that one search may take, including the indexing of new files."""


class FilesSetting(StrictModel):
    """Limits of uploaded files; without this table files cannot be uploaded."""

    max_mb: float = Field(default=16.0, gt=0, le=19)
    """Maximum size of a file; a request body may have 20 MB."""
    tenant_mb: float = Field(default=1024.0, gt=0)
    """Maximum total size of a tenant's files."""
    tenant_files: int = Field(default=10_000, ge=1)
    """Maximum number of a tenant's files."""
    keep_days: float | None = Field(default=None, gt=0)
    """Days for which a file is kept at most; None: until the file is deleted, or expires at the
    time that its client set."""
    max_characters: int = Field(default=400_000, ge=1000)
    """Maximum number of characters of a file's text."""


class ToolsSetting(StrictModel):
    """Tools that Batuta runs; see docs/tools.md."""

    search: SearchSetting | None = None
    reader: ReaderSetting = ReaderSetting()
    python: PythonSetting | None = None
    files: FileSearchSetting | None = None
    mcp: dict[str, McpSetting] = Field(default={})
    """Tools of MCP servers by name; a worker's `model` is such a name."""

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the tables whose tools clients may request."""
        tables = {name: getattr(self, name) for name in ("search", "reader", "python", "files")}
        return tuple(name for name, table in tables.items() if table and table.server_tool)
