"""The same tests as an ordinary user, when they are run by root."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "PYTHONPATH": f"{ROOT / 'src'}:{sysconfig.get_path('purelib')}",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def as_nobody(*command, timeout=1800):
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], env=ENVIRONMENT, cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


def python_of_everybody():
    """An interpreter of this version that an ordinary user can run, with the tests' packages."""
    version = f"python3.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        try:
            done = as_nobody(python, "-c", "import anyio, pytest, batuta.sandbox")
        except OSError:
            continue
        if not done.returncode:
            return python
    return None


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests already ran as an ordinary user")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["hostile", "nothing_left", "sandbox", "probe"])
def test_as_an_ordinary_user(name, tmp_path_factory):
    python = python_of_everybody()
    if python is None:
        pytest.skip("no Python here can be run by an ordinary user")
    path = Path(__file__).with_name(f"test_{name}.py")
    done = as_nobody(python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(path))
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
