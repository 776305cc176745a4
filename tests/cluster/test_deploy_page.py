"""docs/deploy.md, followed literally: its blocks are run on hosts of their own, names made addresses."""

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from cluster.conftest import DEPLOY, Cluster
from cluster.hosts import Hosts

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
HEADING = "## Two replicas, step by step\n"


def blocks():
    """The shell commands of the section, in order: database, files, key, gateway, balancer, client."""
    section = PAGE.partition(HEADING)[2].partition("\n## ")[0]
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(found) == 6
    return found


def test_the_page_leads_to_two_replicas(obstacle, tmp_path):
    if obstacle is not None:
        pytest.skip(f"no cluster can be built here: {obstacle}")
    make_database, write_files, make_key, serve, balance, ask = blocks()
    with Hosts(tmp_path / "hosts", ("db", "one", "two", "lb", "llm", "client")) as hosts:
        by_name = {"data": hosts["db"], "provider": hosts["llm"]}
        cluster = Cluster({**hosts.by_name, **by_name}, tmp_path)
        try:
            cluster.start_provider()
            cluster.start_redis()
            cluster.make_postgres()
            cluster.start_postgres()
            home = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
            tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"

            def run(name, block, *, stays=False):
                for host in hosts.by_name:
                    block = block.replace(f"{host}.internal", hosts[host].address)
                env = {**home, "PATH": tools, "BATUTA_HOME": str(hosts[name].folder / "home")}
                begin = hosts[name].start if stays else hosts[name].run
                return begin("bash", "-euc", block, cwd=hosts[name].folder, env=env)

            run("db", make_database)
            for name in ("one", "two"):
                run(name, write_files)
            run("one", make_key)
            for name in ("one", "two"):
                run(name, serve, stays=True)
                hosts[name].wait_for_port(8765)
            shutil.copy(DEPLOY / "haproxy" / "haproxy.cfg", hosts["lb"].folder)
            run("lb", balance, stays=True)
            hosts["lb"].wait_for_port(80)
            shutil.copy(hosts["one"].folder / "key.json", hosts["client"].folder)
            time.sleep(3)  # HAProxy looks twice before it sends work
            for victim in (None, "one"):
                if victim:
                    time.sleep(2)  # what it answered is written down by then
                    hosts[victim].kill()
                    time.sleep(3)
                said = str(run("client", ask))
                answer = json.loads(said[said.index('{"id"') :])
                assert "42" in answer["choices"][0]["message"]["content"]
            until = time.monotonic() + 20
            while (stored := cluster.sql("SELECT count(*), sum(usd) FROM runs")) != "2|0.0012":
                assert time.monotonic() < until, stored
                time.sleep(0.2)
        finally:
            hosts.close()
            if cluster.pg is not None:
                shutil.rmtree(cluster.pg, ignore_errors=True)
