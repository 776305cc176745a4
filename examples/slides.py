"""Slides offline: outline, content, a check by a second worker, and a deck in one HTML file.

The models are scripted; in batuta.toml real ones take their places:

    [models.slides]
    conductor = "slides"

python examples/slides.py    # writes slides.html
"""

import anyio

from batuta.clients import ScriptedClient
from batuta.conductors.research import CHECK, FINISH, OUTLINE, slide_writer
from batuta.core import Limits, Pool, Question, Request, Worker, WorkerId
from batuta.engine import conduct
from batuta.language.step_reading import read_step
from batuta.rendering.documents import render_deck

TASK = "Ten minutes on why a conductor of models may beat its best player."
FIRST = "## One model\n\n- has one set of weaknesses\n\n---\n\n## A pool\n\n- has several, and they differ"


def write(request: Request) -> str:
    """What a model might write for its subtask."""
    asked = read_step(request.messages).subtask
    if asked == FINISH:
        return f"{FIRST}\n\n---\n\n## What it costs\n\n- more calls, and a plan"
    if asked == CHECK:
        return "The slides do not say what it costs."
    return "1. One model\n2. A pool" if asked == OUTLINE else FIRST


async def main() -> None:
    pool = Pool(
        (
            Worker(id=WorkerId("author"), model="scripted", strength=0.8),
            Worker(id=WorkerId("critic"), model="scripted", strength=0.7),
        )
    )
    clients = {worker.id: ScriptedClient(write) for worker in pool}
    question = Question.of(TASK)
    run = await conduct(question, slide_writer(), pool, clients, limits=Limits(seconds=60))
    await anyio.Path("slides.html").write_text(render_deck(TASK, run.answer or ""))
    print(run.answer)
    print([step.worker for step in run.steps], "; see slides.html")


anyio.run(main)
