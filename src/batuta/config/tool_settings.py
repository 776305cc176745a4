"""The settings of the tools that Batuta runs itself: web search and pages."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from batuta.config.settings_file import StrictModel, VariableName

Domain = Annotated[str, Field(min_length=1, max_length=300)]


class ServedSetting(StrictModel):
    """A tool that may be offered to clients."""

    server_tool: bool = False
    """Whether clients may ask that any model calls it while it answers."""
    max_uses: int | None = Field(default=None, ge=1, le=50)
    """Calls in one call of a model, at most; None: 5."""

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        if not self.server_tool:
            self.refuse_settings(("max_uses",), "needs `server_tool = true`")
        return self


class SearchSetting(ServedSetting):
    """The search engine, and what may be found by it."""

    engine: Literal["searxng", "brave", "tavily", "exa"]
    base_url: str = ""
    """Empty: the engine's own; SearXNG has none."""
    key_env: VariableName = ""
    """The environment variable with the key; by default the engine's own."""
    price: Decimal | None = Field(default=None, ge=0)
    """Dollars a search; None: unknown, and 0 of SearXNG."""
    results: int = Field(default=8, ge=1, le=20)
    """Results of one search, at most."""
    timeout_s: float = Field(default=20.0, gt=0)
    """How long one search may take."""
    allow_domains: tuple[Domain, ...] = ()
    """The only domains that are shown; empty: all."""
    deny_domains: tuple[Domain, ...] = ()
    """Domains that are not shown."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.engine == "searxng":
            self.refuse_settings(("key_env",), "is of engines with keys, and SearXNG has none")
            if not self.base_url:
                raise ValueError('`engine = "searxng"` needs the `base_url` of its server')
        return self

    @property
    def known_price(self) -> Decimal | None:
        """Dollars a search; None: unknown."""
        return Decimal(0) if self.price is None and self.engine == "searxng" else self.price


class ReaderSetting(ServedSetting):
    """Which pages may be read."""

    allow_domains: tuple[Domain, ...] = ()
    """The only domains that are read; empty: all."""
    deny_domains: tuple[Domain, ...] = ()
    """Domains that are not read."""
    private_hosts: tuple[Domain, ...] = ()
    """Hosts, or `host:port`, of private networks that may be read; others are public."""
    max_bytes: int = Field(default=5 << 20, ge=1000)
    """Bytes of a page, at most."""
    max_characters: int = Field(default=20_000, ge=500)
    """Characters of a page's text that are given on."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long one page may take."""


class PythonSetting(ServedSetting):
    """Programs that models write while they answer."""

    timeout_s: float = Field(default=20.0, gt=0, le=600)
    """How long one call may take, with the programs before it, which are run again."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory of a program's processes."""
    max_characters: int = Field(default=16_000, ge=500)
    """Characters of its output that are given on."""
    interpreter: str = ""
    """The Python with the packages that programs may import; empty: Batuta's own."""

    @model_validator(mode="after")
    def _is_wanted(self) -> Self:
        if not self.server_tool:
            raise ValueError("it needs `server_tool = true`: workers have limits of their own")
        return self


class McpSetting(StrictModel):
    """A tool of an MCP server, which workers with `provider = "mcp"` call."""

    tool: str = Field(min_length=1, max_length=200)
    """Its name at the server."""
    argument: str = Field(default="query", min_length=1, max_length=200)
    """The name of its argument: the text of a step's subtask."""
    command: tuple[str, ...] = ()
    """Starts a server that speaks by stdin and stdout."""
    url: str = ""
    """The address of a server that speaks HTTP."""
    price: Decimal | None = Field(default=None, ge=0)
    """Dollars a call; None: unknown."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long one call may take, the start of the server included."""
    max_characters: int = Field(default=20_000, ge=500)
    """Characters of its answer that are given on."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a `command` or a `url`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("`url` must start with http:// or https://")
        return self


class FileSearchSetting(ServedSetting):
    """Which files are searched besides those that callers upload."""

    folder: str = ""
    """A folder; empty: none."""
    vectors: bool = False
    """Whether passages are found by what they mean, too; it needs the extra `encoder`."""
    results: int = Field(default=8, ge=1, le=20)
    """Passages of one search, at most."""
    timeout_s: float = Field(default=60.0, gt=0)
    """How long one search may take, with the indexing of files that are new."""


class FilesSetting(StrictModel):
    """Files that callers upload, where the table is there."""

    max_mb: float = Field(default=16.0, gt=0, le=19)
    """The most of one file; a request's body has at most 20."""
    tenant_mb: float = Field(default=1024.0, gt=0)
    """The most of all files of a tenant together."""
    tenant_files: int = Field(default=10_000, ge=1)
    """Files of a tenant."""
    keep_days: float | None = Field(default=None, gt=0)
    """How long a file is kept at most; None: until it is deleted or its client's time is over."""
    max_characters: int = Field(default=400_000, ge=1000)
    """Characters of one file's text."""


class ToolsSetting(StrictModel):
    """Tools that Batuta runs itself; see docs/tools.md."""

    search: SearchSetting | None = None
    reader: ReaderSetting = ReaderSetting()
    python: PythonSetting | None = None
    files: FileSearchSetting | None = None
    mcp: dict[str, McpSetting] = Field(default={})
    """Tools of MCP servers, by the names that the `model` of a worker gives."""

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the tables whose tools clients may ask for."""
        tables = {name: getattr(self, name) for name in ("search", "reader", "python", "files")}
        return tuple(name for name, table in tables.items() if table and table.server_tool)
