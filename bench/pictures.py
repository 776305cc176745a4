"""The page's pictures in docs/images: `python bench/pictures.py [--training FOLDER]`

The simulated workers of the rehearsal are slowed down, so that a run can be seen while it goes on. The training is that of
`examples/03_train_your_own.py FOLDER`, which is done first where no folder is named: two to three minutes of a core that is
free. It takes Playwright and a Chromium, as the page's tests do.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from anyio.from_thread import start_blocking_portal
from playwright.sync_api import sync_playwright

from batuta.gateway import (
    LOOP_OPTIONS,
    Catalogue,
    PageContext,
    ServerState,
    run_server,
    served_models,
)
from batuta.lab.worlds.simulated import rehearsal_config
from batuta.store import Store

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLE = ROOT / "examples" / "03_train_your_own.py"
SLOWNESS = 100.0
QUESTION = (
    "Start with the list [4, 20, 6, 1, 18, 13, 9]. Rotate it left by 4. Add 5 to each item. Sort it in descending order. "
    "Replace each item by the running total. Keep only the odd items. Take the sum of the items. What is the result?"
)


async def serve(folder, *folders, task_status):
    ensemble = rehearsal_config(None, SLOWNESS)
    catalogue = Catalogue(
        pool=ensemble.pool,
        clients=ensemble.clients,
        models=served_models(ensemble.pool, ensemble.conductor),
        page_context=PageContext(source="the rehearsal", simulated=True, folders=folders),
    )
    async with Store(Path(folder) / "runs.db") as store:
        state = ServerState(catalogue=catalogue, store=store)
        await run_server(state, port=0, on_ready=task_status.started, grace_seconds=0.0)


def take_pictures(browser, url):
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto("/ui/")
    page.fill("#question", QUESTION)
    page.click("[data-go]")
    page.wait_for_selector(".answer.live")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=IMAGES / "page-playground.png")
    page.click("[data-links] a >> text=Open the run")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1280, "height": 1010})
    page.click(".node:not(.conductor) >> nth=-1")
    page.mouse.move(0, 0)
    page.screenshot(path=IMAGES / "page-run.png")
    page.emulate_media(color_scheme="light")
    page.goto("/ui/learning")
    page.click("main tbody a")
    page.wait_for_selector("main svg")
    page.screenshot(path=IMAGES / "page-learning.png")


def train(folder):
    """Train there as the example does."""
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], check=True)


def main(training):
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal("asyncio", LOOP_OPTIONS) as portal,
        sync_playwright() as driver,
    ):
        if training is None:
            training = Path(folder)
            train(training)
        task, url = portal.start_task(serve, folder, training / "runs")
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        take_pictures(browser, url)
        browser.close()
        task.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--training", type=Path, help="a folder in which the example was run")
    main(parser.parse_args().training)
