"""The name on the package index, and the one sentence that says how to install an extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from batuta.distribution import DISTRIBUTION, install_hint, package_version

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
    code = "from batuta.distribution import install_hint; print(install_hint('jobs'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path / "site",
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "pip install 'batuta-llm[jobs]'"


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
