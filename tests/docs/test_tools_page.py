"""Every block of settings in docs/tools.md is short, and serves the tool that its heading names."""

import re
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from docs.shell import ROOT
from encoder.test_sentence_encoder import INSTALLED

pytestmark = pytest.mark.anyio
PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
WORKER = '[[workers]]\nid = "haiku"\nprovider = "anthropic"\nmodel = "claude-haiku-4-5"\ntags = ["tools"]\n'
MOST_LINES = 12
BLOCKS = {title: block for title, text in SECTION.findall(PAGE) for block in BLOCK.findall(text)}
OFFERED = {
    "Search": {"web_search", "search"},
    "Reader": {"web_fetch", "reader"},
    "Python": {"code_interpreter"},
    "Files": {"file_search"},
    "MCP servers": {"handbook"},
    "Pictures": {"painter"},
    "Searches that the provider runs": {"web_search", "sonnet"},
    "Research and slides": {"research", "slides"},
}
"""The tools of the server, the workers and the models that a block adds."""


def test_each_tool_has_one_block_that_is_short():
    assert set(BLOCKS) == set(OFFERED) and len(BLOCK.findall(PAGE)) == len(BLOCKS)
    for title, block in BLOCKS.items():
        assert block.count("\n") <= MOST_LINES, title


@pytest.mark.parametrize(
    ("title", "vectors"), [*((one, False) for one in OFFERED), ("Files", True)]
)
async def test_a_block_serves_what_its_heading_names(
    title: str, vectors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if vectors and not INSTALLED:
        pytest.skip("the extra `encoder` is not installed")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    block = BLOCKS[title].replace("vectors = false", f"vectors = {str(vectors).lower()}")
    path = tmp_path / "batuta.toml"
    path.write_text(f"{WORKER}\n{block}", encoding="utf-8")
    async with HttpTransport() as http:
        config = await load_config(http, pool=str(path))
    found = {worker.id for worker in config.pool} | {one.name for one in config.presets}
    assert OFFERED[title] <= found | set(config.server_tools.tools if config.server_tools else ())
    assert (config.files is not None, config.has_file_vectors) == (title == "Files", vectors)
