"""The container and its compose file: what a linter, a schema and the program itself say of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import anyio
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from batuta.clients import BreakerPolicy, WorkerHealth
from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings
from batuta.gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def run(tool, *options):
    if not (TOOLS / tool).exists():
        pytest.skip(f"{tool} is not installed: pip install -e '.[dev]'")
    done = subprocess.run(
        [str(TOOLS / tool), *options], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_dockerfile_has_no_fault():
    assert run("hadolint", "Dockerfile") == (0, "")


def test_the_compose_file_is_one():
    code, said = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml")
    assert code == 0, said


def test_the_container_starts_the_server_with_options_that_exist(command_line, tmp_path):
    start = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    assert start[:2] == ["batuta", "serve"]
    shown = command_line.run(
        "serve", "--help", cwd=tmp_path, env={"COLUMNS": "200", "PATH": ""}
    ).stdout
    for option in (word for word in start if word.startswith("--")):
        assert option in shown, option


def test_the_container_is_not_root_and_writes_to_its_volume_alone():
    assert re.search(r"^USER 10001$", DOCKERFILE, re.MULTILINE) and "VOLUME /data" in DOCKERFILE
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert "read_only: true" in compose and "no-new-privileges:true" in compose


def test_what_is_copied_is_there_and_not_ignored():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    sources = " ".join(copied).split()
    assert {"pyproject.toml", "README.md", "src"} <= set(sources)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for source in sources:
        assert (ROOT / source).exists() and (f"!{source}" in ignored or "*" not in ignored), source
    # What the package's build reads is among it.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    read = re.findall(r'^(?:readme = "(.+)"|license-files = \["(.+)"\])', project, re.MULTILINE)
    assert {name for pair in read for name in pair if name} <= set(sources)


@pytest.mark.slow
def test_the_server_started_as_in_the_container_is_healthy_and_stops(tmp_path):
    env = {**os.environ, "BATUTA_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    start = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    check = json.loads(re.search(r"^ +CMD (.*)$", DOCKERFILE, re.MULTILINE)[1])
    port = start[start.index("--port") + 1]
    assert f":{port}/" in check[-1] and f"EXPOSE {port}" in DOCKERFILE
    batuta = [sys.executable, "-m", *start[:1]]
    subprocess.run([*batuta, "keys", "create", "me"], cwd=tmp_path, env=env, check=True, capture_output=True)  # fmt: skip
    command = [*batuta, *("0" if word == port else word for word in start[1:])]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as server:  # fmt: skip
        limit = threading.Timer(60, server.kill)
        limit.start()
        served = next(found for line in server.stderr if (found := re.search(r"at http://0.0.0.0:(\d+)/v1", line)))[1]  # fmt: skip
        code = check[-1].replace(f":{port}/", f":{served}/")
        done = subprocess.run([sys.executable, *check[1:-1], code], check=False, capture_output=True, text=True)  # fmt: skip
        server.terminate()
        server.stderr.read()
        assert (done.returncode, done.stderr) == (0, "")
        assert server.wait(60) == 0
        limit.cancel()


def test_every_extra_that_the_container_installs_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = set(
        re.findall(r"--extra (\S+)", re.search(r"^SERVER := (.*)$", makefile, re.MULTILINE)[1])
    )
    wanted |= {*re.search(r"EXTRAS=([a-z,]+)`", DOCKERFILE)[1].split(",")}
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in wanted:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra


OVERLAYS = sorted(path.name for path in (DEPLOY / "kustomize" / "overlays").iterdir())


@cache
def built(overlay):
    """The overlay as Kubernetes would get it."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: apt-get install kubernetes-client")
    done = subprocess.run(
        [kubectl, "kustomize", f"deploy/kustomize/overlays/{overlay}"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def pods(resource):
    """The pod templates in a resource, KubeRay's too."""
    spec = resource.get("spec", {})
    if "template" in spec:
        yield spec["template"]
    for group in (spec.get("headGroupSpec"), *spec.get("workerGroupSpecs", ())):
        if group:
            yield group["template"]


@pytest.mark.slow
def test_every_overlay_is_what_kubernetes_knows(tmp_path):
    files = []
    for overlay in OVERLAYS:
        files.append(tmp_path / f"{overlay}.yaml")
        files[-1].write_text(built(overlay), encoding="utf-8")
        for number, resource in enumerate(yaml.safe_load_all(built(overlay))):
            for place, pod in enumerate(pods(resource)):  # those of KubeRay's own kind too
                files.append(tmp_path / f"{overlay}-pod-{number}-{place}.yaml")
                files[-1].write_text(
                    yaml.safe_dump(
                        {
                            "apiVersion": "v1",
                            "kind": "PodTemplate",
                            "metadata": {"name": "x"},
                            "template": pod,
                        }
                    )
                )
    # One start for all: it reads every kind that Kubernetes knows before it looks at anything.
    code, said = run("kubernetes-validate", "--strict", *map(str, files))
    assert code == 0, said
    assert all(str(file) in said for file in files), "it looked at every one"
    known = [line for line in said.splitlines() if "WARN" in line]
    assert all("RayCluster" in line for line in known), known


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_of_ours_is_root_and_secrets_come_by_files(overlay):
    for resource in yaml.safe_load_all(built(overlay)):
        assert resource["kind"] != "Secret", "secrets are made by hand"
        for pod in pods(resource):
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False
            for container in spec["containers"]:
                if "batuta" not in container["image"]:
                    continue
                assert spec["securityContext"]["runAsNonRoot"] is True
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                for variable in container["env"]:
                    secret = re.search("KEY|TOKEN|SECRET|STORE|REDIS|JOURNAL", variable["name"])
                    assert not secret or variable["name"].endswith("_FILE")
                server = "command" not in container and "ray" not in container["name"]
                assert container["securityContext"].get("readOnlyRootFilesystem", False) is server


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("batuta.toml")), ids=lambda p: p.parent.name)
def test_the_settings_of_every_overlay_are_settings(path):
    found = read_settings(path, Settings)
    assert found.conductor.worker in {worker.id for worker in found.workers}


def test_the_load_balancer_takes_its_file(tmp_path):
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if haproxy is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    addresses = {"LISTEN": "127.0.0.1:9", "BATUTA_ONE": "127.0.0.1:1", "BATUTA_TWO": "127.0.0.1:2"}
    done = subprocess.run(
        [haproxy, "-c", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")],
        env={**os.environ, **addresses}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_proxy_with_tls_takes_its_file():
    caddy = shutil.which("caddy")
    if caddy is None:
        pytest.skip("caddy is not installed: apt-get install --no-install-recommends caddy")
    done = subprocess.run(
        [caddy, "validate", "--config", str(DEPLOY / "caddy" / "Caddyfile")],
        env={**os.environ, "BATUTA_HOST": "batuta.example.com"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_systemd_takes_the_unit(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    unit = (DEPLOY / "systemd" / "batuta.service").read_text(encoding="utf-8")
    program = "/opt/batuta/bin/batuta"
    assert f"ExecStart={program} serve" in unit
    path = tmp_path / "batuta.service"
    path.write_text(unit.replace(program, str(TOOLS / "batuta")), encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(
    "options",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"),
     ("check", "config", "--syntax-only", "prometheus.yml")],
    ids=lambda options: options[-1],
)  # fmt: skip
def test_prometheus_takes_the_rules(options):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install --no-install-recommends prometheus")
    done = subprocess.run([promtool, *options], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_dashboard_is_one(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install --no-install-recommends prometheus")
    board = json.loads((DEPLOY / "grafana" / "batuta.json").read_text(encoding="utf-8"))
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    rules = [
        {
            "record": f"batuta:query_{number}",
            "expr": query.replace("$__rate_interval", "1m").replace("$instance", ".*"),
        }
        for number, query in enumerate(queries)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


def test_every_metric_that_is_looked_at_exists():
    """What the dashboard and the alerts name is what a server that worked a little gives."""
    source = "\n".join(
        p.read_text(encoding="utf-8")
        for p in (DEPLOY / "grafana", DEPLOY / "prometheus")
        for p in p.iterdir()
    )
    named = set(re.findall(r"\b((?:batuta|process)_[a-z_]+)", source)) - {"batuta_admin"}
    gauges = ("running", "waiting", "turned_away_total", "unwritten_runs", "lost_runs_total")
    health = WorkerHealth(BreakerPolicy(5, 1.0))
    metrics = Metrics(lambda: dict.fromkeys(gauges, ("x", 0.0)), lambda: {"w": health})  # pyright: ignore[reportArgumentType]
    families = text_string_to_metric_families(anyio.run(metrics.render).decode())
    known = {name for family in families for name in names_of(family)}
    assert named - known == set()


def names_of(family):
    """Every series that a metric may have; one with labels has none before it is used."""
    yield from (sample.name for sample in family.samples)
    yield family.name
    if family.type == "counter":
        yield f"{family.name.removesuffix('_total')}_total"
    if family.type == "histogram":
        yield from (f"{family.name}{part}" for part in ("_bucket", "_sum", "_count"))


def test_the_gauges_of_the_server_have_these_names():
    source = (ROOT / "src/batuta/gateway/app.py").read_text(encoding="utf-8")
    for name in ("running", "waiting", "turned_away_total", "unwritten_runs", "lost_runs_total"):
        assert f'"{name}"' in source


def test_the_dashboard_is_one_and_says_its_source():
    board = json.loads((DEPLOY / "grafana" / "batuta.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 15
    places = {tuple(panel["gridPos"].values()) for panel in board["panels"]}
    assert len(places) == len(board["panels"]), "no two lie upon each other"
    assert all(p["datasource"]["uid"] == "${source}" and p["targets"] for p in board["panels"])


def test_the_collector_listens_where_the_server_sends():
    collector = yaml.safe_load(
        (DEPLOY / "opentelemetry" / "collector.yaml").read_text(encoding="utf-8")
    )
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    text = (DEPLOY / "opentelemetry" / "batuta.env").read_text(encoding="utf-8")
    assert re.search(rf"^OTEL_EXPORTER_OTLP_ENDPOINT=http://\S+:{port}$", text, re.MULTILINE)
    used = {
        name
        for pipe in collector["service"]["pipelines"].values()
        for names in pipe.values()
        for name in names
    }
    assert used == {
        name for kind in ("receivers", "processors", "exporters") for name in collector[kind]
    }
