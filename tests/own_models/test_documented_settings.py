"""Every TOML block of the documents is a settings file that can be used."""

import re
import tomllib
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.config.settings import read_settings
from batuta.errors import ConfigError
from batuta.train.settings import validate_settings

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("text", BLOCKS)
def test_a_block_is_settings_of_a_server_or_of_a_training(text, tmp_path):
    file = tmp_path / "it.toml"
    file.write_text(text, encoding="utf-8")
    try:
        read_settings(file)
    except ConfigError as error:
        if "learning_rate" not in text and "[policy" not in text and "[reward" not in text:
            raise
        assert validate_settings(tomllib.loads(text), "the block"), error


def test_there_are_blocks_to_try():
    assert len(BLOCKS) >= 6


async def test_the_first_block_of_the_page_on_settings_opens(tmp_path):
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    file = tmp_path / "batuta.toml"
    file.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0], encoding="utf-8")
    keys = {
        "ANTHROPIC_API_KEY": "sk-ant-0123456789",
        "MY_KEY": "sk-0123456789abcdef",
        "MY_EU_KEY": "sk-eu-123456789",
    }
    async with HttpTransport() as http:
        found = await load_config(http, pool=str(file), environ=keys)
    assert [str(worker.id) for worker in found.pool] == ["sonnet", "local", "python"]
    assert found.conductor.name == "prompted/sonnet"
    assert found.mini is not None and found.mini.name == "prompted/sonnet"
