"""The documents' site is built without a warning, and its references are what the code has."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from batuta.cli import app
from batuta.config.settings import Settings
from batuta.gateway.openapi.document import OPERATIONS

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=\"?(https?:)?//|<link\b[^>]*rel=\"?(?:stylesheet|preload|preconnect|dns-prefetch)[^>]*href=\"?(?:https?:)?//")  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if find_spec("material") is None:
        pytest.skip("no site generator: pip install -e '.[docs]'")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def read(site, name):
    return (site / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if FETCHED.search(page.read_text(encoding="utf-8"))] == []
    styles = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.css"))
    assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"']?(?:https?:)?//", styles)


def test_every_setting_command_and_address_is_in_the_references(site):
    settings = read(site, "reference/settings.html")
    for name in Settings.model_fields:
        assert f">{name}</code>" in settings, name
    assert "Empty: all tenants." in settings, "the texts below the fields"
    commands = read(site, "reference/commands.html")
    for name in (
        "batuta ask",
        "batuta serve",
        "batuta runs list",
        "batuta keys create",
        "batuta eval",
    ):
        assert f"<code>{name}</code>" in commands, name
    assert app.registered_commands is not None
    http = read(site, "reference/http.html")
    for method, path in OPERATIONS:
        assert f"<code>{method} {path}</code>" in http, path
    assert "batuta.ask_sync" in read(site, "reference/python.html")
    assert '"openapi"' in read(site, "reference/openapi.json")


def test_links_into_the_repository_become_links_of_the_site_or_text(site):
    home = read(site, "index.html")
    assert 'href="configuration.html"' in home and 'src="images/page-playground.png"' in home
    assert "docs/images" not in home
    tour = read(site, "tour.html")
    assert "../src/" not in tour and "../tests/" not in tour


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
