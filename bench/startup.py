"""Start-up: import CPU, and `batuta ask` from shell to answer. `python bench/startup.py`"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

QUESTION = "Compute the result: begin at 45; square it; double it."


def cpu_of(args, env):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(args, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        time.perf_counter() - start,
    )


def run():
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "BATUTA_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
        bare = statistics.median(cpu_of([sys.executable, "-c", "pass"], env)[0] for _ in range(5))
        imports = statistics.median(
            cpu_of([sys.executable, "-c", "import batuta.gateway.app"], env)[0] for _ in range(5)
        )
        ask = [
            cpu_of([sys.executable, "-m", "batuta", "ask", "--pool", "rehearsal", QUESTION], env)[1]
            for _ in range(6)
        ]
    result = {"import_gateway_cpu_s": round(imports - bare, 2), "import_gateway_cpu_with_python_s": round(imports, 2),
              "ask_first_s": round(ask[0], 2), "ask_s": round(statistics.median(ask[1:]), 2)}  # fmt: skip
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    run()
