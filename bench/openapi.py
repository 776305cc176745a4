"""Requests made from GET /openapi.json by schemathesis: `python bench/openapi.py [SECONDS] [SEED]`

Needs `pip install schemathesis`. A server of this process with keys and scripted workers; the routes of
callers with a tenant's key and those of the admin with the admin's token. A fault is a 5xx, a status, a
type or a body that the document does not have, a method that is not there and is answered, or an answer
that takes more than two seconds; exit status 1.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from batuta.store import Store
from gateway.test_mutated import Village

SLOW = 2
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
ADMINS = "^/(v1/admin|metrics)"


async def hunt(seconds, seed):
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        async with Store(Path(folder) / "runs.db") as store, Village(store) as village:
            await village.settle()
            for role, chosen in (
                ("acme", "--exclude-path-regex"),
                ("admin", "--include-path-regex"),
            ):
                done = await anyio.run_process(
                    [str(Path(sys.executable).with_name("schemathesis")), "run",
                     f"{village.serving.url}/openapi.json", chosen, ADMINS,
                     "-H", f"Authorization: Bearer {village.keys[role]}",
                     "-c", ",".join(CHECKS), "--max-response-time", str(SLOW), "--seed", str(seed),
                     "--max-time", str(seconds), "--continue-on-failure", "--no-color",
                     "--suppress-health-check", "all"],
                    check=False, cwd=folder,
                )  # fmt: skip
                found[role] = (done.returncode, done.stdout.decode())
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    given = [int(word) for word in sys.argv[1:]]
    result = anyio.run(hunt, *(given + [60, 1][len(given) :]))
    for role, (_, told) in result.items():
        print(f"== {role}\n{told}")
    print(json.dumps({role: code for role, (code, _) in result.items()}))
    sys.exit(1 if any(code for code, _ in result.values()) else 0)
