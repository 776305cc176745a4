"""Every TOML block of the documents is a settings file that can be used."""

import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.clients import HttpTransport
from batuta.conductors.selector import save_selector
from batuta.config.load import load_config
from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings, validate_settings
from batuta.core import WorkerId
from batuta.embedded.policy import ConductorCard
from batuta.environment import models_cache
from batuta.errors import ConfigError
from batuta.lab.learners.history import history_from_record
from batuta.lab.learners.selector_training import fit_selector
from batuta.lab.train.settings import TrainSettings
from batuta.language import PromptOptions
from batuta.local.catalogue import MODELS
from fakes.serving import Server
from lab.evals.record import made_up

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ONE_KEY = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789",
    "BATUTA_WEBHOOK_SECRET": "c2VjcmV0IG9mIG1vcmUgdGhhbiAyNCBieXRlcw==",
}
"""What the pages say is needed."""
REVIEW = """model_id = [0, 1]
subtasks = ["Answer.", "Review the answer and give the final one."]
access_list = [[], [0]]
"""
"""The workflow file that the page on sessions names."""
TRAINING = ("learning_rate", "[policy]", "[policy.", "[reward]", "[evaluation]")
"""What only a training's settings have."""
TOOLS = {"search", "reader", "python", "files", "mcp"}
"""Providers of workers that are no models: a block of theirs stands beside a pool's own workers."""
MODEL = """
[[workers]]
id = "sonnet"
provider = "anthropic"
model = "claude-sonnet-5-5"
"""
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
        read_settings(file, Settings)
    except ConfigError as error:
        if not any(word in text for word in TRAINING):
            raise
        assert validate_settings(tomllib.loads(text), "the block", TrainSettings), error


def test_there_are_blocks_to_try():
    assert len(BLOCKS) >= 6


async def test_the_first_block_of_the_page_on_settings_opens_with_one_key(tmp_path):
    file = write_sample(tmp_path)
    async with HttpTransport() as http:
        found = await load_config(http, pool=str(file), environ=ONE_KEY)
    assert [str(worker.id) for worker in found.pool] == ["sonnet", "local", "python"]
    assert found.conductor.name == "prompted/sonnet"
    assert found.mini is not None and found.mini.name == "prompted/sonnet"


async def test_the_first_block_of_the_page_on_settings_is_served_with_one_key(tmp_path):
    file = write_sample(tmp_path)
    async with Server(tmp_path, "--pool", str(file), **ONE_KEY) as server:
        assert {"batuta-ultra", "worker/sonnet", "worker/local"} <= await server.models()


@pytest.fixture(scope="module")
def selector(tmp_path_factory):
    """The folder of one that was trained on the pool of the pages."""
    outcomes = history_from_record(made_up())
    of_the_pool = [WorkerId(f"anthropic/claude-{name}-4-5") for name in ("opus", "sonnet", "haiku")]
    known = replace(outcomes, workers=tuple(of_the_pool[: len(outcomes.workers)]))
    folder = tmp_path_factory.mktemp("selector") / "mini"
    save_selector(fit_selector(known), folder)
    return folder


@pytest.mark.parametrize("text", BLOCKS)
async def test_every_block_of_a_server_opens_with_one_key(text, selector, tmp_path, monkeypatch):
    if any(word in text for word in TRAINING):
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "handbook").mkdir()
    pretend_pulled(models_cache())
    trained = tmp_path / "runs" / "mine" / "policy"  # what the page has trained by then
    trained.mkdir(parents=True)
    ConductorCard(name="mine", rendering=PromptOptions()).write(trained)
    shutil.copytree(selector, tmp_path / "runs" / "mini")
    (tmp_path / "review.txt").write_text(REVIEW, encoding="utf-8")
    (tmp_path / "confidence.json").write_text('{"conductors": {}}', encoding="utf-8")
    file = tmp_path / "batuta.toml"
    workers = tomllib.loads(text).get("workers", [])
    if workers and all(each.get("provider") in TOOLS for each in workers):
        text += MODEL
    file.write_text(text, encoding="utf-8")
    async with HttpTransport() as http:
        assert await load_config(http, pool=str(file), environ=ONE_KEY)


def pretend_pulled(cache):
    """Empty files of the size of the local models, which is what tells that they were pulled."""
    cache.mkdir(parents=True)
    for model in MODELS.values():
        with (cache / model.file).open("wb") as file:
            file.truncate(model.size)


def write_sample(folder):
    """The settings file that docs/configuration.md begins with, as it stands."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    file = folder / "batuta.toml"
    file.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0], encoding="utf-8")
    return file
