"""`batuta serve` as a person starts it, over the rehearsal pool."""

import os
import re
import subprocess
import sys
import threading

import pytest


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "batuta", "serve", "--pool", "rehearsal", "--port", "0"]
    env = {**os.environ, "BATUTA_HOME": str(home)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=home, env=env)
    limit = threading.Timer(120, process.kill)
    limit.start()
    found = None
    while found is None:
        line = process.stderr.readline()
        assert line, "the server ended"
        found = re.search(r"at (http://\S+/v1)", line)
    limit.cancel()
    yield found[1]
    process.terminate()
    assert process.wait(60) == 0
    process.stderr.close()
