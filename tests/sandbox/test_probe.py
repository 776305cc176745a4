"""Which tier is taken, and what is said where none holds."""

import errno
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from batuta.errors import SandboxError
from batuta.sandbox import Program, Sandbox, ScriptTest
from batuta.sandbox.backends import TMP
from batuta.sandbox.inside.kernel import CREATE_RULESET, landlock_version
from batuta.sandbox.seccomp import (
    ALLOW,
    CONDITIONS,
    LOAD,
    NUMBER_AT,
    NUMBERS,
    RETURN,
    _bpf_statement,
    _refuse_call,
)

OPEN_BWRAP = """#!{python}
import os, sys
at = sys.argv.index("--chdir") - 2
os.execv("{bwrap}", ["bwrap", *sys.argv[1:at], *"{options}".split(), *sys.argv[at:]])
"""
VAR_TMP = "/var/tmp"  # noqa: S108
SYSTEM_PATH = os.environ["PATH"]
OPEN = """
import os, sys, time, anyio
from batuta.errors import SandboxError
from batuta.sandbox import Program, Sandbox, ScriptTest
from batuta.sandbox.inside.kernel import PR_SET_NO_NEW_PRIVS, install_filter, prctl
async def main(tier):
    try:
        async with Sandbox.open(tier) as sandbox:
            (outcome,) = await sandbox.run(Program("print(6 * 7)"), (ScriptTest(""),))
            print(sandbox.backend, outcome.stdout.strip())
    except SandboxError as error:
        print("refused:", error)
open_process = anyio.open_process
async def slowly(*command, **options):
    process = await open_process(*command, **options)
    time.sleep(float(os.environ.get("SLOW", 0)))
    return process
anyio.open_process = slowly
prctl(PR_SET_NO_NEW_PRIVS, 1)
install_filter(bytes.fromhex(sys.argv[2]))
anyio.run(main, sys.argv[1])
"""


def no_namespaces():
    """A filter like the one of Docker: no new namespaces."""
    code = _bpf_statement(LOAD, NUMBER_AT) + _refuse_call(
        NUMBERS[platform.machine()]["unshare"], errno.EPERM
    )
    code += _refuse_call(435, errno.ENOSYS) + CONDITIONS[0].code(
        NUMBERS[platform.machine()]["clone"]
    )
    return code


def opened(tier, code=b"", path=SYSTEM_PATH, **more):
    """What a process that is so filtered says of that tier."""
    command = [sys.executable, "-c", OPEN, tier, (code + _bpf_statement(RETURN, ALLOW)).hex()]
    env = {**os.environ, "PATH": path, **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert not done.stderr, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def bwrap():
    """It works here."""
    if (said := opened("bubblewrap")) != "bubblewrap 42":
        pytest.skip(said)


needs_bwrap = pytest.mark.usefixtures("bwrap")
needs_landlock = pytest.mark.skipif(
    landlock_version() < 6, reason="this kernel has no Landlock 6 (Linux 6.12)"
)


@needs_bwrap
def test_the_strongest_tier_is_taken():
    assert opened("auto") == "bubblewrap 42"


@needs_landlock
def test_landlock_is_taken_where_bubblewrap_is_not_installed():
    assert opened("auto", path="/nowhere") == "landlock 42"


@needs_bwrap
@needs_landlock
def test_landlock_is_taken_in_a_container_that_forbids_namespaces():
    assert opened("auto", no_namespaces()) == "landlock 42"


@needs_bwrap
def test_a_refusal_gives_causes_and_remedies():
    no_landlock = no_namespaces() + _refuse_call(CREATE_RULESET, errno.ENOSYS)
    said = opened("auto", no_landlock)
    assert said.startswith("refused: no sandbox works here (bubblewrap: bwrap: ")
    assert "; landlock: this kernel has Landlock 0, 6 is needed (Linux 6.12)): install" in said
    assert "choose the tier `none`" in said


def test_a_missing_bwrap_says_how_to_install_it():
    said = opened("bubblewrap", path="/nowhere")
    assert "bwrap is not installed (apt-get install bubblewrap)" in said


def test_none_is_never_taken_unasked():
    code = no_namespaces() + _refuse_call(CREATE_RULESET, errno.ENOSYS)
    assert opened("auto", code, path="/nowhere").startswith("refused")
    assert opened("none", code, path="/nowhere") == "none 42"


@needs_bwrap
def test_a_tier_that_lets_a_program_out_is_not_taken(tmp_path):
    def said(options):
        """Of a bwrap with a hole."""
        bwrap = shutil.which("bwrap")
        script = OPEN_BWRAP.format(python=sys.executable, bwrap=bwrap, options=options)
        Path(tmp_path, "bwrap").write_text(script, encoding="utf-8")
        Path(tmp_path, "bwrap").chmod(0o755)
        return opened("bubblewrap", path=f"{tmp_path}:{SYSTEM_PATH}", TMPDIR=VAR_TMP)

    hole = f"--perms 755 --dir /var --bind {VAR_TMP} {VAR_TMP}"
    assert "in it, a program can read a file of the machine, write a file" in said(hole)
    assert " is not empty" in said(f"--bind {VAR_TMP} {TMP}")


@needs_landlock
def test_a_bwrap_that_dies_before_it_is_told_anything_leaves_no_word_behind(tmp_path):
    """What is written to it would meet a broken pipe, which Python 3.11.2 reports at its end."""
    Path(tmp_path, "bwrap").write_text("#!/bin/sh\nsleep 0.1\nexit 1\n", encoding="utf-8")
    Path(tmp_path, "bwrap").chmod(0o755)
    assert opened("auto", path=f"{tmp_path}:{SYSTEM_PATH}", SLOW="0.3") == "landlock 42"


@needs_bwrap
async def test_an_environment_in_the_temporary_folder_is_said_to_be_there(anyio_backend):
    with tempfile.TemporaryDirectory(dir=TMP) as folder:
        venv.create(folder, with_pip=False)
        with pytest.raises(
            SandboxError, match=rf"{folder}\S+ is in /tmp, which a sandbox cannot see"
        ):
            async with Sandbox.open("bubblewrap", python=Path(folder, "bin/python")):
                pass


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock", "none"])
async def test_an_environment_that_holds_a_copy_of_the_interpreter(anyio_backend, tier):
    with tempfile.TemporaryDirectory(dir=VAR_TMP) as folder:
        venv.create(folder, symlinks=False, with_pip=False)
        try:
            async with Sandbox.open(tier) as sandbox:
                tier = sandbox.backend
        except SandboxError as error:
            pytest.skip(str(error))
        async with Sandbox.open(tier, python=Path(folder, "bin/python")) as sandbox:
            (outcome,) = await sandbox.run(Program("import sys; print(6 * 7)"), (ScriptTest(""),))
            assert outcome.stdout == "42\n", outcome.stderr


@needs_landlock
@pytest.mark.skipif(os.getuid() != 0, reason="only root's programs become another user")
def test_a_temporary_folder_that_others_cannot_enter_is_said_to_be_one(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    said = opened("landlock", TMPDIR=str(closed))
    assert "the sandbox's user cannot enter" in said
    assert "set TMPDIR to a folder that every user may enter" in said


async def test_an_interpreter_that_is_none_is_refused(anyio_backend):
    with pytest.raises(SandboxError, match="does not run as a Python"):
        async with Sandbox.open("none", python="/bin/false"):
            pass
    with pytest.raises(SandboxError, match="does not run as a Python"):
        async with Sandbox.open("none", python=Path("/nowhere/python")):
            pass
