"""Ollama, or another server on this machine: many questions at once, no key, no cost.

ollama pull llama3.2
python examples/07_ollama.py
"""

import anyio

import batuta

CITIES = ["France", "Italy", "Japan", "Brazil"]


async def main() -> None:
    async with batuta.open("discover", conductor="best") as session:
        runs = await session.ask_many(
            [f"What is the capital of {country}? One word." for country in CITIES],
            concurrency=2,
            progress=True,
        )
        for country, run in zip(CITIES, runs, strict=True):
            print(f"{country}: {run.answer or run.error}")
        print("cost of all runs:", session.spent.usd)


anyio.run(main)
