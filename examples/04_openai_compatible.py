"""An OpenAI-compatible server: the answer is printed while it is written.

export OPENAI_API_KEY=sk-...     # OpenAI itself; for another server also OPENAI_BASE_URL=http://host:port/v1
python examples/04_openai_compatible.py
"""

import anyio

import batuta
from batuta.core import StepDelta


async def main() -> None:
    async with batuta.open("discover", conductor="best") as session:
        print("workers:", ", ".join(worker.id for worker in session.pool))
        stream = session.stream("What is the capital of France? Answer in one sentence.")
        async for event in stream:
            if isinstance(event, StepDelta):
                print(event.delta.text, end="", flush=True)
        print()
        run = stream.run
        print(repr(run) if run else "the run was cancelled")


anyio.run(main)
