"""Programs that are not this project's: they check what they are told and do nothing."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check_pip(arguments):
    """`pip install 'batuta-llm[EXTRA,…]'`, an extra that exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert arguments[0] == "install", arguments
    for wanted in arguments[1:]:
        name, _, extras = wanted.partition("[")
        assert name == project["name"], wanted
        for extra in filter(None, extras.rstrip("]").split(",")):
            assert extra in project["optional-dependencies"], extra


def check_make(arguments):
    """A target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in arguments:
        if "=" not in target:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def check_docker(arguments):
    """A command of compose on the service of compose.yaml."""
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert arguments[0] == "compose" and arguments[1] in {"build", "up", "run"}, arguments
    if arguments[1] == "run":
        words = [word for word in arguments[2:] if not word.startswith("-")]
        assert words[0] == "batuta" and re.search(rf"^  {words[1]}:", compose, re.MULTILINE), words


CHECKS = {"pip": check_pip, "make": check_make, "docker": check_docker}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](sys.argv[2:])
