"""A stand-in for `kubectl` before a cluster of one pod: it starts what the manifests say, as processes of this machine.

Manifests are built, and secrets made, by the real kubectl, which needs no cluster for that. The pod's container is the
Dockerfile's entry point with exactly the variables of the deployment; its mounts are folders. Nothing that is not asked for
by a manifest reaches it but BATUTA_HOME, which the image sets, and the addresses of the fake providers.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CLUSTER = Path(os.environ["CLUSTER"])
REAL = os.environ["REAL_KUBECTL"]
ENTRY = json.loads(
    re.search(r"^ENTRYPOINT (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
)


def real(*arguments):
    done = subprocess.run(
        [REAL, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(arguments):
    """A namespace or a secret; with a dry run it is only shown."""
    if "namespace" in arguments:
        (CLUSTER / arguments[-1]).mkdir()
        return
    made = real(*dict.fromkeys(["create", *arguments, "--dry-run=client", "--output=yaml"]))
    if any(word.startswith("--dry-run") for word in arguments):
        sys.stdout.write(made)
    else:
        keep(yaml.safe_load(made), "batuta")


def apply(arguments):
    kind, what = arguments
    text = real("kustomize", what) if kind == "--kustomize" else Path(what).read_text()
    resources = list(yaml.safe_load_all(text))
    for resource in resources:
        space = resource["metadata"].get("namespace", "batuta")
        assert (CLUSTER / space).is_dir(), f"there is no namespace {space}"
        keep(resource, space)
    for resource in resources:
        if resource["kind"] == "Deployment":
            start(resource)


def keep(resource, space):
    """Write a config map or a secret as files; note what else there is."""
    place = CLUSTER / space / f"{resource['kind']}-{resource['metadata']['name']}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, text in (resource.get("data") or {}).items():
        data = b64decode(text) if resource["kind"] == "Secret" else text.encode()
        (place / name).write_bytes(data)
    (place / "resource.yaml").write_text(yaml.safe_dump(resource))


def start(deployment):
    """Replace the pod by a new one and wait for nothing."""
    stop()
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    volumes = {one["name"]: find_volume(one) for one in spec["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    environ = {
        "PATH": os.environ["PATH"],
        "BATUTA_HOME": str(mounts["/data"]),
        "OMP_NUM_THREADS": "1",
        **{k: v for k, v in os.environ.items() if k.endswith("_BASE_URL") or k == "no_proxy"},
    }
    for variable in container["env"]:
        path = Path(variable["value"])
        folder = mounts[str(path.parent)]
        environ[variable["name"]] = str(folder / path.name)
    probe = container["readinessProbe"]["httpGet"]["path"]
    port = str(container["ports"][0]["containerPort"])
    assert ENTRY[ENTRY.index("--port") + 1] == port
    free = os.environ["POD_PORT"]
    command = [sys.executable, "-m", *(free if word == port else word for word in ENTRY)]
    with (CLUSTER / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=mounts["/data"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    pod = {"pid": process.pid, "environ": environ, "probe": probe, "home": str(mounts["/data"])}
    (CLUSTER / "pod.json").write_text(json.dumps(pod))


def find_volume(volume):
    if "emptyDir" in volume and volume["emptyDir"] is not None:
        place = CLUSTER / f"empty-{volume['name']}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place
    if claim := volume.get("persistentVolumeClaim"):
        assert (CLUSTER / "batuta" / f"PersistentVolumeClaim-{claim['claimName']}").is_dir()
        place = CLUSTER / f"volume-{claim['claimName']}"
        place.mkdir(exist_ok=True)
        return place
    kind, name = (
        ("Secret", volume["secret"]["secretName"])
        if "secret" in volume
        else ("ConfigMap", volume["configMap"]["name"])
    )
    place = CLUSTER / "batuta" / f"{kind}-{name}"
    assert place.is_dir(), f"{kind} {name} is missing: the pod would wait for ever"
    return place


def stop():
    file = CLUSTER / "pod.json"
    if not file.exists():
        return
    pid = json.loads(file.read_text())["pid"]
    os.kill(pid, signal.SIGTERM)
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    file.unlink()


def rollout(arguments):
    """Wait until the pod is ready, as its readiness probe says."""
    assert arguments[:2] == ["status", "deployment/batuta"]
    pod = json.loads((CLUSTER / "pod.json").read_text())
    for _ in range(900):
        try:
            urllib.request.urlopen(
                f"http://127.0.0.1:{os.environ['POD_PORT']}{pod['probe']}", timeout=5
            )
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"it is not ready: {(CLUSTER / 'log').read_text()}")


def execute(arguments):
    """Run a command in the pod's surroundings."""
    assert arguments[:2] == ["deployment/batuta", "--"]
    pod = json.loads((CLUSTER / "pod.json").read_text())
    command = [word.replace("/data/", f"{pod['home']}/") for word in arguments[2:]]
    programs = {"batuta": [sys.executable, "-m", "batuta"], "python": [sys.executable]}
    os.chdir(pod["home"])
    words = [*programs.get(command[0], command[:1]), *command[1:]]
    os.execvpe(words[0], words, pod["environ"])  # noqa: S606


def forward(arguments):
    """The pod listens where the forwarded port would be; here it is only looked whether that is so."""
    target, ports = arguments
    service = yaml.safe_load(
        (
            CLUSTER / "batuta" / f"Service-{target.removeprefix('service/')}" / "resource.yaml"
        ).read_text()
    )
    here, there = ports.split(":")
    assert here == os.environ["POD_PORT"] and there == str(service["spec"]["ports"][0]["port"])


COMMANDS = {
    "create": create,
    "apply": apply,
    "rollout": rollout,
    "exec": execute,
    "port-forward": forward,
    "stop": lambda _: stop(),
}

if __name__ == "__main__":
    given = sys.argv[1:]
    if given[0] == "--namespace":
        assert (CLUSTER / given[1]).is_dir(), f"there is no namespace {given[1]}"
        given = given[2:]
    COMMANDS[given[0]](given[1:])
