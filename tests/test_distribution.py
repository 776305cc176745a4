"""The name on the package index, and the one sentence that says how to install an extra."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from batuta.distribution import DISTRIBUTION, Installation, install_hint, package_version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["name"] == DISTRIBUTION == "batuta-llm"
    assert PROJECT["version"] == package_version()


def test_a_clone_is_told_to_install_from_the_clone():
    assert install_hint("train", "graders") == ".venv/bin/pip install -e '.[train,graders]'"


def test_an_installed_wheel_names_the_distribution(tmp_path):
    package = tmp_path / "site" / "batuta"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    source = ROOT / "src" / "batuta" / "distribution.py"
    (package / "distribution.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    code = "from batuta.distribution import install_hint; print(install_hint('redis'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path / "site",
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "pip install 'batuta-llm[redis]'"


CLONE, ELSEWHERE = Path("/home/ann/batuta"), Path("/home/ann/tools/env")
UV = """[tool]
requirements = [
    { name = "batuta-llm", extras = ["tune"], editable = "/home/ann/batuta" },
    { name = "toolz" },
]
"""


@pytest.mark.parametrize(
    ("receipt", "clone", "extra", "package"),
    [
        (
            ("uv-receipt.toml", UV),
            CLONE,
            "uv tool install --force --editable '/home/ann/batuta[tune,plots]' --with toolz",
            "uv tool install --force --editable '/home/ann/batuta[tune]' --with toolz --with vllm",
        ),
        (
            ("uv-receipt.toml", "[tool"),
            None,
            "uv tool install --force 'batuta-llm[plots]'",
            "uv tool install --force batuta-llm --with vllm",
        ),
        (
            ("pipx_metadata.json", "{}"),
            CLONE,
            "pipx runpip batuta-llm install -e '/home/ann/batuta[plots]'",
            "pipx inject batuta-llm vllm",
        ),
        (
            ("pipx_metadata.json", "{}"),
            None,
            "pipx runpip batuta-llm install 'batuta-llm[plots]'",
            "pipx inject batuta-llm vllm",
        ),
        (None, None, "pip install 'batuta-llm[plots]'", "pip install vllm"),
        (
            None,
            CLONE,
            "{prefix}/bin/pip install -e '/home/ann/batuta[plots]'",
            "{prefix}/bin/pip install vllm",
        ),
    ],
)
def test_each_way_of_installing_has_its_own_hint(tmp_path, receipt, clone, extra, package):
    if receipt is not None:
        (tmp_path / receipt[0]).write_text(receipt[1], encoding="utf-8")
    here = Installation(prefix=tmp_path, clone=clone, is_virtual=True)
    assert here.extra_hint("plots") == extra.format(prefix=tmp_path)
    assert here.package_hint("vllm") == package.format(prefix=tmp_path)


def test_an_environment_in_the_clone_is_named_as_the_documents_do():
    here = Installation(prefix=CLONE / ".venv", clone=CLONE, is_virtual=True)
    assert here.extra_hint("plots") == ".venv/bin/pip install -e '.[plots]'"
    assert here.package_hint("x", no_deps=True) == ".venv/bin/pip install --no-deps x"


def test_a_clone_without_an_environment_names_its_python():
    here = Installation(prefix=ELSEWHERE, clone=CLONE, is_virtual=False)
    python = shlex.quote(sys.executable)
    assert here.extra_hint("plots") == f"{python} -m pip install -e '/home/ann/batuta[plots]'"


@pytest.mark.slow
def test_every_hint_comes_from_the_one_place_that_knows_the_way():
    """No other module tells anybody to install anything in words of its own."""
    told = re.compile(r"(pip|pipx|uv pip|uv tool) (install|inject)|batuta\\*\[")
    for path in (ROOT / "src" / "batuta").rglob("*.py"):
        if path.name != "distribution.py":
            found = [one for one in strings_of(path) if told.search(one)]
            assert found == [], path


def strings_of(path):
    """The texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_the_help_names_the_right_package(command_line, tmp_path):
    env = {**os.environ, "COLUMNS": "200"}
    for arguments in (("--help",), ("train", "--help")):
        shown = command_line.run(*arguments, cwd=tmp_path, env=env).stdout
        assert "batuta[" not in shown
    assert install_hint("train") in shown


def test_nothing_installs_the_unrelated_project():
    """Every hint in code and documents names extras that exist, of the right distribution."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    files += [*ROOT.glob("recipes/**/*.md"), *ROOT.glob("examples/*"), ROOT / "Dockerfile"]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert "install batuta" not in text.replace("install batuta-llm", ""), path
        assert "'batuta[" not in text, path
        hints = " ".join(re.findall(r"install_hint\(([^)]*)\)", text))
        named = re.findall(r"[\"']([\w-]+)[\"']", hints)
        for extras in re.findall(r"batuta-llm\[([\w,-]*)\]", text):
            named += extras.split(",")
        assert set(named) <= set(PROJECT["optional-dependencies"]), path
