"""Evaluations by Ray on hosts of their own, of which each part is killed once.

With the journal on PostgreSQL a death may cost the calls that were in flight in what died and no finished
one, everything ends, and the figures are the undisturbed run's.
"""

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.conftest import Cluster
from cluster.hosts import Hosts, ip

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="the Ray executor needs batuta-llm[ray]"),
]
QUESTIONS = 30
SYSTEMS = "weak,self-consistency@3,ultra"
PROCESSES = 4
CAP = 12
"""Calls of a worker at the same time, over all nodes."""
MARGIN = 0.5
"""Seconds in which a reply reaches the journal: a call that ended longer ago than this is finished."""
AWAY = 2.0
"""Seconds for which a database is away."""
SETTINGS = """
[[workers]]
id = "steady"
provider = "compatible"
base_url = "http://{provider}:9000/v1"
model = "steady"
strength = 0.8
price = {{ input = 2, output = 8 }}
concurrency = {cap}

[[workers]]
id = "weak"
provider = "compatible"
base_url = "http://{provider}:9000/v1"
model = "weak"
strength = 0.3
price = {{ input = 1, output = 2 }}
concurrency = {cap}

[conductor]
worker = "plan-solve-verify"

[server]
redis = "redis://{data}:6379"
replicas = {processes}
"""


@dataclass
class Ended:
    """An evaluation that has ended."""

    rows: dict[str, dict]
    """Its results by their keys, without the seconds that they took."""
    report: dict
    calls: list[list]
    """What the provider wrote down of it."""
    seconds: float

    @property
    def made(self):
        """How often each call was begun."""
        return Counter(key_of(row) for row in self.calls if row[0] == "began")

    @property
    def twice(self):
        return sum(number - 1 for number in self.made.values())

    def most_open(self, first, last):
        """Calls that the provider was answering, the most within that time."""
        most = now = 0
        for kind, *_, at in self.calls:
            if at > last:
                break
            if at > first:
                most = max(most, now)
            now += 1 if kind == "began" else -1
        return max(most, now)

    def finished_again(self, moment):
        """Calls that had ended well before, and were begun again."""
        kept = {key_of(r) for r in self.calls if r[0] == "ended" and r[4] < moment - MARGIN}
        return {key_of(r) for r in self.calls if r[0] == "began" and r[4] > moment} & kept


def key_of(row):
    _, model, text, seed, _ = row
    return model, text, seed


class RayHosts(Cluster):
    """A head, which has no cores and where the driver runs, and two nodes with two cores each."""

    def __init__(self, hosts, folder):
        super().__init__(hosts, folder)
        self.session = Path(tempfile.mkdtemp(prefix="bt-ray-"))  # paths of sockets must be short
        values = {"provider": self.provider.address, "data": self.data.address}
        (folder / "batuta.toml").write_text(SETTINGS.format(**values, cap=CAP, processes=PROCESSES))
        lines = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
        (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
        self.journal = f"postgresql://postgres@{self.data.address}/postgres"
        self.env |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "OMP_NUM_THREADS": "1",
        }
        del self.env["BATUTA_STORE"]

    def start(self):
        for host in self.hosts.values():
            # Ray looks for its own address by the way to the world outside.
            ip("-n", host.space, "route", "add", "default", "dev", "eth0")
        self.start_provider("1.0")  # so that most are in flight when something dies
        self.start_redis()
        self.make_postgres()
        self.start_postgres()
        self.start_ray("head", "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.session}")  # fmt: skip
        for name in ("left", "right"):
            self.start_node(name)

    def start_node(self, name):
        """One after the other: on one machine two that begin at once take the same sockets."""
        self.start_ray(name, f"--address={self.hosts['head'].address}:6379", "--num-cpus=2")

    def start_ray(self, name, *options):
        """A node, until it is up; Ray gives up after 30 s, which a busy machine may take."""
        host = self.hosts[name]
        command = (
            str(Path(sys.executable).parent / "ray"), "start", *options, "--block",
            f"--node-ip-address={host.address}", "--object-store-memory=100000000",
        )  # fmt: skip
        for _ in range(4):
            log = host.folder / f"ray-{time.monotonic_ns()}"
            process = host.start(*command, log=log.name, env=self.env)
            while process.poll() is None:
                if "will now block" in log.read_text():
                    return
                time.sleep(0.5)
            host.kill()  # what it began
        raise TimeoutError(log.read_text()[-3000:])

    def evaluate(self, name):
        """The command, begun on the head."""
        address = f"ray:{self.hosts['head'].address}:6379"
        return self.hosts["head"].start(
            sys.executable, "-m", "batuta", "eval", "--pool", str(self.folder / "batuta.toml"),
            "--tasks", str(self.folder / "own.jsonl"), "--limit", str(QUESTIONS),
            "--systems", SYSTEMS, "--concurrency", "16", "--executor", address,
            "--workers", str(PROCESSES), "--journal", self.journal, "--out", str(self.folder / name),
            log=f"eval-{name}", env={**self.env, "BATUTA_HOME": str(self.folder / "home")},
        )  # fmt: skip

    def calls_since(self, offset):
        return [json.loads(line) for line in self.calls.read_text().splitlines()[offset:]]

    def wait_for_calls(self, process, offset, number):
        """Until the provider was asked so often."""
        until = time.monotonic() + 240
        while sum(row[0] == "began" for row in self.calls_since(offset)) < number:
            assert process.poll() is None, "it ended early"
            assert time.monotonic() < until, "it does not get on"
            time.sleep(0.02)

    def measure(self, name, disturb=None):
        """An evaluation, in which something happens once two fifths of the calls were begun.

        Args:
            name: of its folder.
            disturb: what happens, given the driver's process; it returns the driver that goes on.

        Returns:
            What it came to, and when what happened had begun and ended.
        """
        offset = len(self.calls_since(0))
        began = first = last = time.monotonic()
        driver = self.evaluate(name)
        if disturb is not None:
            self.wait_for_calls(driver, offset, 2 * QUESTIONS)
            first = time.monotonic()
            driver = disturb(driver) or driver
            last = time.monotonic()
        code = driver.wait(400)
        log = (self.hosts["head"].folder / f"eval-{name}").read_text()
        assert code == 0, log[-3000:]
        lines = (self.folder / name / "results.jsonl").read_text().splitlines()
        rows = {row["key"]: {**row, "seconds": None} for row in map(json.loads, lines)}
        assert len(rows) == len(lines), "a result was written twice"
        report = json.loads((self.folder / name / "report.json").read_text())["systems"]
        seconds = time.monotonic() - began
        return Ended(rows, report, self.calls_since(offset), seconds), first, last


@pytest.fixture(scope="module")
def ray_hosts(obstacle, tmp_path_factory):
    if obstacle is not None:
        pytest.skip(f"no hosts can be made here: {obstacle}")
    folder = tmp_path_factory.mktemp("kills")
    with Hosts(folder, ("head", "left", "right", "data", "provider")) as hosts:
        found = RayHosts(hosts.by_name, folder)
        try:
            found.start()
            yield found
        finally:
            hosts.close()
            shutil.rmtree(found.session, ignore_errors=True)
            if found.pg is not None:
                shutil.rmtree(found.pg, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(ray_hosts):
    ended, *_ = ray_hosts.measure("undisturbed")
    open_calls = Counter()
    most = Counter()
    for kind, model, *_ in ended.calls:
        open_calls[model] += 1 if kind == "began" else -1
        most[model] = max(most[model], open_calls[model])
    print(
        f"  undisturbed: {len(ended.rows)} results, {len(ended.made)} calls in {ended.seconds:.0f} s,"
        f" at most {dict(most)} at the same time of {CAP} allowed"
    )
    assert ended.twice == 0
    assert len(ended.rows) == 3 * QUESTIONS
    assert max(most.values()) <= CAP, "a limit holds over all nodes"
    assert ended.report["weak"]["accuracy"] == 0.5
    return ended


def figures(report):
    """All that a report says of a system, without the time that it took."""
    return {
        name: {key: value for key, value in system.items() if "seconds" not in key}
        for name, system in report.items()
    }


def kill_actor(ray_hosts, driver):
    victim = ray_hosts.hosts["left"].processes("ray::RayWorker")[0]
    os.kill(victim, signal.SIGKILL)


def kill_node(ray_hosts, driver):
    host = ray_hosts.hosts["right"]
    host.link(up=False)
    host.kill()
    host.link(up=True)


def kill_driver(ray_hosts, driver):
    """Its actors work on until Ray has noticed: what is in flight then is lost."""
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(10)
    until = time.monotonic() + 60
    while any(ray_hosts.hosts[name].processes("ray::RayWorker") for name in ("left", "right")):
        assert time.monotonic() < until, "the actors outlive their driver"
        time.sleep(0.1)
    return ray_hosts.evaluate("driver")


def kill_postgres(ray_hosts, driver):
    ray_hosts.stop_postgres("immediate")
    time.sleep(AWAY)
    ray_hosts.start_postgres()


def cut_connections(ray_hosts, driver):
    ray_hosts.sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
        "postgres",
    )


def kill_redis(ray_hosts, driver):
    ray_hosts.redis.kill()
    ray_hosts.redis.wait(10)
    time.sleep(AWAY)
    ray_hosts.start_redis()


VICTIMS = {
    "actor": (kill_actor, True),
    "driver": (kill_driver, True),
    "PostgreSQL": (kill_postgres, False),
    "connections": (cut_connections, False),
    "Redis": (kill_redis, False),
    "node": (kill_node, True),
}
"""What is killed, and whether calls die with it."""


def test_after_ctrl_c_no_node_works_on(ray_hosts, undisturbed):
    offset = len(ray_hosts.calls_since(0))
    driver = ray_hosts.evaluate("interrupted")
    ray_hosts.wait_for_calls(driver, offset, QUESTIONS)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 130
    time.sleep(1)
    workers = [ray_hosts.hosts[n].processes("ray::RayWorker") for n in ("left", "right")]
    before = len(ray_hosts.calls_since(offset))
    time.sleep(3)
    after = len(ray_hosts.calls_since(offset))
    print(f"  Ctrl-C: {before} lines of the provider a second later, {after} after three more")
    assert workers == [[]] * len(workers)
    assert after == before


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_death_costs_no_finished_call_and_changes_no_figure(ray_hosts, undisturbed, victim):
    disturb, calls_die = VICTIMS[victim]
    ended, first, last = ray_hosts.measure(victim, lambda driver: disturb(ray_hosts, driver))
    in_flight = ended.most_open(first, last)
    again = ended.finished_again(first)
    print(
        f"  {victim} killed: {in_flight} calls in flight, {ended.twice} of {len(ended.made)} made"
        f" twice, {len(again)} of them finished ones; {ended.seconds:.0f} s"
        f" ({undisturbed.seconds:.0f} s undisturbed)"
    )
    assert in_flight > 0, "it was killed at work"
    assert not again
    assert ended.twice <= (in_flight if calls_die else 0)
    assert set(ended.made) == set(undisturbed.made)
    assert ended.rows == undisturbed.rows
    assert figures(ended.report) == figures(undisturbed.report)
