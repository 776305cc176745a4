"""Two gateways, PostgreSQL with Redis, a provider, HAProxy and clients: each a host of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

import pytest

from cluster.hosts import Hosts, why_not

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
DATABASE = "batuta"
PRICE = Decimal(100 * 2 + 50 * 8) / 1_000_000
"""Dollars of one of the provider's calls: 100 tokens in at 2, 50 out at 8 a million."""
SETTINGS = """
[[workers]]
id = "steady"
provider = "compatible"
base_url = "http://{provider}:9000/v1"
model = "steady"
strength = 0.8
price = {{ input = 2, output = 8 }}
concurrency = 2000

[[workers]]
id = "narrow"
provider = "compatible"
base_url = "http://{provider}:9000/v1"
model = "narrow"
strength = 0.3
price = {{ input = 2, output = 8 }}
concurrency = 5

[conductor]
worker = "plan-solve-verify"

[limits]
deadline_s = 120

[server]
redis = "redis://{data}:6379"
replicas = 2
running = 1200
grace_s = 10
"""


def postgres_binaries():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def obstacle():
    if postgres_binaries() is None:
        return "PostgreSQL's server is not installed (Debian: postgresql)"
    return why_not("haproxy", "redis-server", "ss", "runuser")


class Cluster:
    """The hosts, and what is done with them."""

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.folder = folder
        self.data, self.provider = hosts["data"], hosts["provider"]
        self.pg = None
        self.calls = folder / "calls.jsonl"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")},
            "BATUTA_STORE": f"postgresql://postgres@{self.data.address}/{DATABASE}",
            "BATUTA_SECRET": "0123456789abcdef" * 4,
            "BATUTA_CONFIG": str(folder / "batuta.toml"),
            "NO_PROXY": "*",
        }
        (folder / "batuta.toml").write_text(
            SETTINGS.format(provider=self.provider.address, data=self.data.address)
        )

    def start(self):
        self.start_provider()
        self.start_redis()
        self.make_postgres()
        self.start_postgres()
        self.data.run(
            "psql", "-h", self.data.address, "-U", "postgres", "-c", f"CREATE DATABASE {DATABASE}"
        )
        self.key = self.make_key("load")
        for name in ("one", "two"):
            self.start_gateway(name)
        self.start_balancer()

    def start_provider(self, *latency):
        self.provider.start(
            sys.executable, str(HERE / "provider.py"), "9000", str(self.calls), *latency
        )
        self.provider.wait_for_port(9000)

    def start_redis(self):
        self.redis = self.data.start("redis-server", "--bind", self.data.address, "--protected-mode", "no", "--save", "", "--dir", str(self.data.folder), log="redis")  # fmt: skip
        self.data.wait_for_port(6379)

    def make_postgres(self):
        self.pg = Path(tempfile.mkdtemp(prefix="batuta-postgres-"))  # its user may not read others
        subprocess.run(["chown", "-R", "postgres", str(self.pg)], check=True)
        binaries = postgres_binaries()
        subprocess.run(["runuser", "-u", "postgres", "--", str(binaries / "initdb"), "-D", str(self.pg), "-A", "trust"], check=True, capture_output=True)  # fmt: skip
        with (self.pg / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.77.0.0/24 trust\n")

    def start_postgres(self):
        binary = postgres_binaries() / "postgres"
        self.postgres = self.data.start("runuser", "-u", "postgres", "--", str(binary), "-D", str(self.pg), "-h", self.data.address, "-k", str(self.pg), "-c", "max_connections=200", log="postgres-log")  # fmt: skip
        self.data.wait_for_port(5432)
        for _ in range(100):
            try:
                self.sql("SELECT 1", "postgres")
            except RuntimeError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError("PostgreSQL does not start")

    def stop_postgres(self, how="immediate"):
        binary = postgres_binaries() / "pg_ctl"
        self.data.run(
            "runuser", "-u", "postgres", "--", str(binary), "-D", str(self.pg), "-m", how, "stop"
        )
        self.postgres.wait(30)

    def start_gateway(self, name):
        host = self.hosts[name]
        env = {**self.env, "BATUTA_HOME": str(host.folder / "home")}
        host.start(
            sys.executable,
            "-m",
            "batuta",
            "serve",
            "--host",
            host.address,
            "--port",
            "8765",
            env=env,
        )
        host.wait_for_port(8765)

    def start_balancer(self):
        host = self.hosts["balancer"]
        env = {**os.environ, "LISTEN": f"{host.address}:80", "PATH": f"{os.environ['PATH']}:/usr/sbin",
               "BATUTA_ONE": f"{self.hosts['one'].address}:8765", "BATUTA_TWO": f"{self.hosts['two'].address}:8765"}  # fmt: skip
        host.start("haproxy", "-db", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"), env=env)
        host.wait_for_port(80)
        self.url = f"http://{host.address}:80"

    def make_key(self, name, *options):
        env = {**self.env, "BATUTA_HOME": str(self.folder / "keys")}
        said = self.hosts["client"].run(sys.executable, "-m", "batuta", "keys", "create", name, "--json", *options, env=env)  # fmt: skip
        made = json.loads(said)
        return made.get("key") or made.get("text") or made["secret"]

    def sql(self, query, database=DATABASE):
        return self.data.run(
            "psql", "-h", self.data.address, "-U", "postgres", "-At", "-d", database, "-c", query
        ).strip()

    def load(self, kind, **plan):
        """Clients that were started; `results` waits for them."""
        plan = {"url": self.url, "key": self.key, "model": "worker/steady", "kind": kind,
                "concurrency": 20, "tag": kind, **plan}  # fmt: skip
        return self.hosts["client"].start(
            sys.executable, str(HERE / "load.py"), json.dumps(plan), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def results(self, process):
        said, wrong = process.communicate(timeout=300)
        assert process.returncode == 0, wrong
        return json.loads(said)

    def job_times(self, tag):
        """Calls that reached the provider for the questions of a tag: how many, how many ended."""
        rows = [json.loads(line) for line in self.calls.read_text().splitlines()]
        mine = [row for row in rows if tag in row[2]]
        return [row for row in mine if row[0] == "began"], [
            row for row in mine if row[0] == "ended"
        ]

    def billed(self):
        """Dollars and calls in the ledger."""
        usd, calls = self.sql(
            "SELECT coalesce(sum(usd), 0), coalesce(sum(calls), 0) FROM ledger"
        ).split("|")
        return Decimal(usd), int(calls)

    def wait_until_ready(self, *names, seconds=60):
        for name in names:
            host = self.hosts[name]
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    self.hosts["client"].run(
                        "curl", "-sf", "-m", "2", f"http://{host.address}:8765/readyz"
                    )
                except RuntimeError:
                    time.sleep(0.3)
                else:
                    break
            else:
                raise TimeoutError(f"{name} is not ready again")

    def settle(self, seconds=60):
        """Until nothing is going on: no call open at the provider, no money set apart."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.sql("SELECT count(*) FROM reservations") == "0":
                time.sleep(1)
                return
            time.sleep(0.5)


@pytest.fixture(scope="session")
def cluster(obstacle, tmp_path_factory):
    if obstacle is not None:
        pytest.skip(f"no cluster can be built here: {obstacle}")
    folder = tmp_path_factory.mktemp("cluster")
    with Hosts(folder, ("one", "two", "data", "balancer", "client", "provider")) as hosts:
        found = Cluster(hosts, folder)
        try:
            found.start()
            yield found
        finally:
            hosts.close()
            if found.pg is not None:
                shutil.rmtree(found.pg, ignore_errors=True)
