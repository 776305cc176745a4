"""Plugins that are broken: one sentence from whoever asks for them, and nothing from all others."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from batuta import plugins
from batuta.errors import ConfigError
from batuta.gateway.serving.baselines import baseline_models
from gateway.live_server import HI, Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio

MODULES = {
    "raises": 'raise RuntimeError("no\\nway")',
    "syntax": "def (:",
    "ends": "import sys; sys.exit(3)",
    "wrong": "app = 7",
    "gone": None,
}
BROKEN = "the command 'raises' of the package strange cannot be loaded: RuntimeError: no way"
KINDS = ("command", "pool", "baseline", "tasks")


def install(folder, name, rows):
    """Write the metadata of an installed package with these entry points."""
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text("\n".join(["[batuta.plugins]", *rows]))


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A package whose plugins are all broken is installed."""
    rows = [f"{kind}.{name} = strange_{name}:app" for kind in KINDS for name in MODULES]
    rows += ["nodot = strange_wrong:app", "odd.reference = no reference"]
    install(tmp_path, "strange", rows)
    for name, text in MODULES.items():
        if text is not None:
            (tmp_path / f"strange_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    plugins._read_declarations.cache_clear()
    yield
    plugins._read_declarations.cache_clear()
    for name in MODULES:
        sys.modules.pop(f"strange_{name}", None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODULES)
def test_a_broken_plugin_is_one_sentence(broken, kind, name):
    with pytest.raises(ConfigError, match=f"the {kind} '{name}' of the package strange") as told:
        plugins.open_plugin(kind, name, lambda found: found.nothing())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_that_two_packages_declare_is_refused_unless_they_agree(broken, tmp_path, kind):
    rows = [f"{kind}.wrong = other_module:app", f"{kind}.gone = strange_gone:app"]
    install(tmp_path, "other", rows)
    plugins._read_declarations.cache_clear()
    with pytest.raises(ConfigError, match=r"several packages \(other, strange\)"):
        plugins.open_plugin(kind, "wrong", lambda found: found)
    with pytest.raises(ConfigError, match=f"the {kind} 'gone' of the package"):
        plugins.open_plugin(kind, "gone", lambda found: found)
    assert plugins.plugin_names(kind).count("wrong") == 1


def batuta(folder, *words):
    """The exit status and all that is written by a `batuta` that finds the packages there."""
    ran = subprocess.run(
        [sys.executable, "-m", "batuta", *words],
        env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def test_the_other_commands_work_beside_broken_ones(broken, tmp_path):
    status, told = batuta(tmp_path, "--help")
    assert status == 0 and "Traceback" not in told and "the command 'raises' of the package" in told
    (tmp_path / "strange_disk.py").write_text(
        "from batuta.errors import StoreError\nraise StoreError('the disk is full')\n"
    )
    install(tmp_path, "disk", ["command.disk = strange_disk:app"])
    status, told = batuta(tmp_path, "--help")
    assert status == 0 and "the disk is full" in told
    status, told = batuta(tmp_path, "raises", "--any", "thing")
    assert (status, told) == (2, f"batuta: {BROKEN}")


async def test_a_broken_baseline_takes_no_server_down(broken):
    pool = pool_of("ada")
    app_state = scripted_state({"ada": None})
    models = baseline_models(pool, app_state.catalogue.models[0].limits)
    assert {f"baseline/{name}" for name in MODULES} <= {model.name for model in models}
    app_state.catalogue.models = (*app_state.catalogue.models, *models)
    async with Serving(app_state) as server:
        for name in MODULES:
            asked = {"model": f"baseline/{name}", "messages": HI}
            status, _, body = await server.post(json=asked)
            assert (status, body["error"]["code"]) == (404, "model_not_found"), body
            assert f"the baseline '{name}' of the package strange" in body["error"]["message"]
        assert (await server.get("/healthz"))[0] == 200
