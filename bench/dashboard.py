"""The dashboard of deploy/grafana with real figures, in docs/images: `python bench/dashboard.py [--seconds 240]`

A server of the rehearsal is asked for some minutes, a real Prometheus (on the PATH) scrapes it, each panel's own queries are asked of
that Prometheus, and matplotlib draws what it answers. So it shows what the panels tell; it is no screenshot of Grafana, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import anyio
import matplotlib as mpl

from pictures import serve

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "deploy" / "grafana" / "batuta.json"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
SCRAPE = 5
VARIABLES = {"$__rate_interval": "60s", "$instance": ".*"}
CAPTION = (
    "deploy/grafana/batuta.json, drawn by bench/dashboard.py from a real Prometheus with the dashboard's own queries; not a screenshot "
    "of Grafana.\nThe rehearsal: simulated workers, invented prices."
)
QUESTIONS = (
    "Compute the result: begin at {0}; square it; double it.",
    "Start with the list [4, {0}, 6, 1]. Sort it in descending order. Take the sum of the items. What is the result?",
)
MOST_NAMES = 6
INK, FAINT = "#1d1d1b", "#77756f"


async def ask(session, until):
    """Ask one question after another, as four kinds of callers do."""
    while time.monotonic() < until:
        question = random.choice(QUESTIONS).format(random.randint(2, 99))
        body = {
            "model": random.choice(("batuta-ultra", "batuta-ultra", "batuta-mini", "worker/tuba")),
            "messages": [{"role": "user", "content": question}],
            "stream": random.random() < 0.5,
        }
        if random.random() < 0.05:
            body["model"] = "batuta-maxi"  # a caller's mistake
        async with session.post("/v1/chat/completions", json=body) as answer:
            await answer.read()
        await asyncio.sleep(random.expovariate(0.5))


async def draw_figures(url, seconds, callers):
    """Ask the server for so long; return each panel with what its queries answer."""
    with tempfile.TemporaryDirectory() as folder:
        target = url.removeprefix("http://").partition("/")[0]
        settings = Path(folder) / "prometheus.yml"
        settings.write_text(
            f"global: {{scrape_interval: {SCRAPE}s}}\nscrape_configs:\n"
            f"  - job_name: batuta\n    static_configs: [{{targets: ['{target}']}}]\n"
        )
        address = "127.0.0.1:19090"
        command = [
            shutil.which("prometheus") or "prometheus", f"--config.file={settings}",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}", "--log.level=error",
        ]  # fmt: skip
        process = subprocess.Popen(command)
        try:
            async with aiohttp.ClientSession(f"http://{target}") as session:
                until = time.monotonic() + seconds
                async with anyio.create_task_group() as tasks:
                    for _ in range(callers):
                        tasks.start_soon(ask, session, until)
            async with aiohttp.ClientSession(f"http://{address}") as session:
                return [
                    (panel, [await query(session, one, seconds) for one in panel["targets"]])
                    for panel in json.loads(BOARD.read_text())["panels"]
                ]
        finally:
            process.terminate()
            process.wait()


async def query(session, target, seconds):
    """The series of one query: a name and points of time and value each."""
    expression = target["expr"]
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    now = time.time()
    asked = {"query": expression, "start": now - seconds, "end": now, "step": SCRAPE}
    async with session.get("/api/v1/query_range", params=asked) as answer:
        told = await answer.json()
    assert told["status"] == "success", f"{expression}: {told}"
    return [
        (name_series(target["legendFormat"], one["metric"]), one["values"])
        for one in told["data"]["result"]
    ]


def name_series(form, labels):
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", value)
    return form


def draw(figures):
    plt.rcParams |= {"font.size": 8, "axes.edgecolor": "#d9d7d1", "text.color": INK}
    picture, places = plt.subplots(6, 3, figsize=(15, 19))
    for (panel, answers), place in zip(figures, places.flat, strict=True):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        place.set_title(f"{panel['title']}  ({unit})", loc="left", fontsize=10, fontweight="bold")
        series = [one for answer in answers for one in answer]
        series.sort(key=lambda one: -max((float(v) for _, v in one[1] if v != "NaN"), default=0))
        for name, points in series:
            times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
            place.plot(times, [float(value) for _, value in points], linewidth=1.3, label=name)
        if series:
            place.xaxis.set_major_formatter(mpl.dates.DateFormatter("%H:%M"))
            place.xaxis.set_major_locator(mpl.dates.MinuteLocator())
            handles, names = place.get_legend_handles_labels()
            place.legend(
                handles[:MOST_NAMES], names[:MOST_NAMES], frameon=False, fontsize=7, ncols=2,
                loc="upper center", bbox_to_anchor=(0.5, -0.1),
            )  # fmt: skip
        else:
            place.text(0.5, 0.5, "no data", ha="center", color=FAINT, transform=place.transAxes)
            place.set_xticks([])
        place.set_ylim(bottom=0)
        place.tick_params(colors=FAINT, length=0)
        place.grid(axis="y", color="#eceae5")
        place.spines[["top", "right", "left"]].set_visible(False)
    picture.text(0.01, 0.995, CAPTION, va="top", fontsize=10, color=FAINT)
    picture.tight_layout(rect=(0, 0, 1, 0.975), h_pad=2.5)
    picture.savefig(PICTURE, dpi=96)


async def main(options):
    with tempfile.TemporaryDirectory() as folder:
        async with anyio.create_task_group() as tasks:
            url = await tasks.start(serve, folder)
            figures = await draw_figures(url, options.seconds, options.callers)
            tasks.cancel_scope.cancel()
    draw(figures)
    empty = [panel["title"] for panel, answers in figures if not any(answers)]
    print(f"{len(figures)} panels in {PICTURE.relative_to(ROOT)}; without data: {empty or 'none'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="how long the server is asked")
    parser.add_argument("--callers", type=int, default=6, help="that ask at the same time")
    anyio.run(main, parser.parse_args())
