"""Runs the shell blocks of a document as they stand, in a folder of their own, against fake providers.

Stand-ins replace only what is not this project's: `pip`, `make`, `docker` and `accelerate` check their
arguments and do nothing. `batuta serve` goes to the background once it is ready, so that the lines after it
reach it; its port is a free one, in every line of the page.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from fakes.command_line import CLIENT

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
PORT = "8765"
STAND_INS = {
    "batuta": """
if [ "$1" = serve ]; then
    shift
    {python} -m batuta serve --port {port} "$@" > serve.log 2>&1 &
    echo $! >> {pids}
    for _ in $(seq 600); do
        grep -q "web page" serve.log && exit 0
        kill -0 $! || {{ cat serve.log >&2; exit 1; }}
        sleep 0.1
    done
    exit 1
fi
exec {batuta} "$@"
""",
    "pip": 'exec {python} {here}/stand_ins.py pip "$@"',
    "make": 'exec {python} {here}/stand_ins.py make "$@"',
    "docker": 'exec {python} {here}/stand_ins.py docker "$@"',
}


def shell_blocks(page):
    """The page's shell blocks as one script; empty: it has none."""
    return "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_page(command_line, script, folder, **environ):
    """What the script printed, both streams; it must succeed line by line."""
    address, batuta = folder.parent / "line", f"{sys.executable} -m batuta"
    if Path("/proc/self/fd").is_dir():
        batuta = f"{sys.executable} -S -E {CLIENT} {address}"
    port, pids = free_port(), folder.parent / f"{folder.name}.pids"
    folder.mkdir(exist_ok=True)
    bin_folder = folder.parent / f"{folder.name}.bin"
    bin_folder.mkdir()
    for name, text in STAND_INS.items():
        file = bin_folder / name
        known = {
            "python": sys.executable,
            "port": port,
            "pids": pids,
            "here": Path(__file__).parent,
            "batuta": batuta,
        }
        file.write_text("#!/bin/bash\n" + text.format(**known))
        file.chmod(0o755)
    words = ("API_KEY", "BASE_URL", "OLLAMA", "BATUTA", "AWS", "AZURE", "OTEL")
    clean = {k: v for k, v in os.environ.items() if not any(word in k for word in words)}
    env = {
        **clean,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "BATUTA_HOME": str(folder / "home"),
        "COLUMNS": "150",
        "OMP_NUM_THREADS": "1",
        **environ,
    }
    try:
        with command_line.answer(address):
            return subprocess.run(
                ["bash", "-eu", "-o", "pipefail", "-c", script.replace(PORT, str(port))],
                cwd=folder, env=env, text=True, check=False, timeout=500, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
    finally:
        for pid in pids.read_text().split() if pids.exists() else ():
            subprocess.run(["kill", pid], check=False)
