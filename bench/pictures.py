"""The page's pictures in docs/images, of the rehearsal: `python bench/pictures.py`

Its simulated workers are slowed down, so that a run can be seen while it goes on. It takes Playwright and a Chromium, as the
page's tests do. The picture of a training is of a run whose folder is not in the repository.
"""

from __future__ import annotations

import shutil
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

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SLOWNESS = 100.0
QUESTION = (
    "Start with the list [4, 20, 6, 1, 18, 13, 9]. Rotate it left by 4. Add 5 to each item. Sort it in descending order. "
    "Replace each item by the running total. Keep only the odd items. Take the sum of the items. What is the result?"
)


async def serve(folder, *, task_status):
    ensemble = rehearsal_config(None, SLOWNESS)
    catalogue = Catalogue(
        pool=ensemble.pool,
        clients=ensemble.clients,
        models=served_models(ensemble.pool, ensemble.conductor),
        page_context=PageContext(source="the rehearsal", simulated=True),
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


def main():
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal("asyncio", LOOP_OPTIONS) as portal,
        sync_playwright() as driver,
    ):
        task, url = portal.start_task(serve, folder)
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        take_pictures(browser, url)
        browser.close()
        task.cancel()


if __name__ == "__main__":
    main()
