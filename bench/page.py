"""The web page: milliseconds a screen, with 10,000 runs in the list. `python bench/page.py`

CPU is that of this process, the asking client's in it: it says more than time on a busy machine.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import anyio
from starlette.testclient import TestClient

from batuta.core import Limits, Question, Round
from batuta.engine import conduct
from batuta.gateway import Catalogue, ServerState, create_app, served_models
from batuta.gateway.ui import compile_templates
from batuta.gateway.ui.assets import load_assets
from batuta.lab.worlds.simulated import rehearsal_config
from batuta.store import Store

RUNS = 10_000
TIMES = 20


async def fill(path):
    """Ten thousand runs of the embedded pool, each question asked once and stored often."""
    ensemble = rehearsal_config(None, 0.0)
    texts = (
        "Compute the result: begin at 45; square it; double it.",
        "Add 3 to 4; triple it. What is it?",
    )
    runs = [
        await conduct(
            Question.of(text),
            ensemble.conductor,
            ensemble.pool,
            ensemble.clients,
            limits=Limits(seconds=60),
        )
        for text in texts
    ]
    async with Store(path) as store:
        for number in range(RUNS):
            run = runs[number % len(runs)]
            header = replace(
                run.header, id=f"run_{number:024}", started=1.7e9 + number, model="batuta-ultra"
            )
            rounds: tuple[Round, ...] = run.rounds * (3 if number == RUNS - 1 else 1)
            await store.append(replace(run, header=header, rounds=rounds))


def run():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        anyio.run(fill, path)
        ensemble = rehearsal_config(None, 0.0)
        store = Store(path)
        catalogue = Catalogue(
            pool=ensemble.pool,
            clients=ensemble.clients,
            models=served_models(ensemble.pool, ensemble.conductor),
        )
        compile_templates()  # as `serve` does beside its start
        with TestClient(
            create_app(ServerState(catalogue=catalogue, store=store)), base_url="http://localhost"
        ) as client:
            with client.portal.wrap_async_context_manager(store):
                measure(client)
    script = sum(len(gzip.compress(asset.body, 9)) for asset in load_assets().values())
    print(f"script, styles and icon under gzip: {script / 1000:.1f} kB")


def measure(client):
    last, before = (f"run_{RUNS - back:024}" for back in (1, 2))
    screens = {
        "playground": "/ui/",
        "runs, first page": "/ui/runs",
        "runs, second page": "",
        "runs, search that finds half": "/ui/runs?q=triple",
        "runs, search that finds none": "/ui/runs?q=nowhere",
        "a run of three rounds": f"/ui/runs/{last}",
        "two runs compared": f"/ui/compare?a={last}&b={before}",
        "pool": "/ui/pool",
    }
    print(f"{'':32} {'CPU':>8} {'CPU':>8} {'CPU':>8} {'time':>8} {'time':>8}")
    print(f"{'screen':32} {'first':>8} {'median':>8} {'worst':>8} {'median':>8} {'worst':>8}  ms")
    older = ""
    for name, address in screens.items():
        cpu, took, text = measured(client, address or older)
        if 'rel="next"' in text:
            older = text.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        print(
            f"{name:32} {cpu[0]:8.1f} {statistics.median(cpu):8.1f} {max(cpu[1:]):8.1f}"
            f" {statistics.median(took):8.1f} {max(took[1:]):8.1f}"
        )


def measured(client, address):
    """Milliseconds of CPU and of time of each visit, and the page."""
    cpu, took, text = [], [], ""
    for _ in range(TIMES):
        start, began = time.perf_counter(), time.process_time()
        response = client.get(address)
        cpu.append((time.process_time() - began) * 1000)
        took.append((time.perf_counter() - start) * 1000)
        assert response.status_code == 200, (address, response.status_code)
        text = response.text
    return cpu, took, text


if __name__ == "__main__":
    run()
