"""What is installed is what was locked, and what is released says what it is made of."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    "core": (),
    "server": ("otel", "postgres", "redis", "policies"),
    "dev": ("dev",),
}
_PIN = re.compile(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)[^\n]*\\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)  # fmt: skip


def locked(name):
    """Versions by package, each with the hashes of its files."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    found = {}
    for package, version, hashes in _PIN.findall(text):
        found.setdefault(canonicalize_name(package), []).append((Version(version), hashes))
    unpinned = [line for line in text.splitlines() if re.match(r"[a-z]", line) and "==" not in line]
    assert not unpinned
    return found


def wanted(name):
    lines = [*PROJECT["dependencies"]]
    for extra in EXTRAS[name]:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", EXTRAS)
def test_every_dependency_is_locked_within_its_bounds_with_hashes(name):
    found = locked(name)
    for requirement in wanted(name):
        versions = found.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement.name} is not locked: make lock"
        assert any(requirement.specifier.contains(version) for version, _ in versions), requirement
    assert all("sha256:" in hashes for versions in found.values() for _, hashes in versions)


def test_every_dependency_has_a_lower_bound():
    for name in ("core", "server", "dev"):
        for requirement in wanted(name):
            assert any(spec.operator == ">=" for spec in requirement.specifier), str(requirement)


def test_the_container_installs_what_is_locked_and_nothing_else():
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install (.*)", dockerfile)
    assert "--no-deps" in installs[0] and "--require-hashes -r locks/server.txt" in installs[0]
    assert "--no-deps ." in installs[1]
    # A third line installs more only where the builder of the image asks for extras by name.
    assert (
        re.findall(r'^RUN test -z "\$EXTRAS" \|\| .*pip install (.*)$', dockerfile, re.MULTILINE)
        == installs[2:]
    )


@pytest.mark.slow
def test_the_bill_of_materials_names_what_is_locked(tmp_path):
    tool = Path(sys.executable).parent / "cyclonedx-py"
    if not tool.exists():
        pytest.skip("cyclonedx-bom is not installed: pip install -e '.[dev]'")
    out = tmp_path / "bill.json"
    command = [tool, "requirements", "--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON", "-o", out, "locks/server.txt"]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    bill = json.loads(out.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "batuta-llm")
    named = {canonicalize_name(one["name"]): one for one in bill["components"]}
    assert named.keys() == locked("server").keys()
    assert all(one["version"] and one["purl"] for one in named.values())
