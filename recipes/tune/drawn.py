"""Tunes worlds drawn from seeds and compares what is recommended with an exhaustive search.

    python recipes/tune/drawn.py --worlds 0-9 --seeds 1,2 --calls 6000

The exhaustive search runs every workflow of the library of up to four steps (first phrasings) on
questions of each kind, the best of them on more, and names one for each kind; its share right and
those of what `tune` recommends are of the same fresh questions. One line of JSON for each tuning.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from ceiling import STEPS, measure
from measure import measure_questions

from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.tune.library import write_workflow
from lab.tune.drawn_worlds import draw_world, truth_of
from lab.tune.worlds import every_candidate, grade

ROUNDS = ((60, 400), (200, 60), (1000, 1))
"""Questions of each kind in each round of the exhaustive search, and how many workflows are left."""
ASKED, FRESH = 700, 1500


def search_exhaustively(world, fresh):
    """For each kind its best workflow, and the share right of them all on the fresh questions."""
    flows = [write_workflow(one) for one in every_candidate(world.workers, STEPS)]
    chosen, right = {}, 0.0
    for kind in world.kinds:
        left = list(range(len(flows)))
        seen = dict.fromkeys(left, 0.0)
        for number, (count, kept) in enumerate(ROUNDS):
            asked = [
                t.question for t in world.tasks(8 * count, seed=7_000 + number) if t.tags[0] == kind
            ][:count]
            for place, share in zip(
                left, measure(world, [flows[p] for p in left], asked, truth_of), strict=True
            ):
                seen[place] = share
            left = sorted(left, key=lambda place: -seen[place])[:kept]
        chosen[kind] = left[0]
        questions = [task.question for task in fresh if task.tags[0] == kind]
        right += len(questions) * measure(world, [flows[left[0]]], questions, truth_of)[0]
    names = every_candidate(world.workers, STEPS)
    return right / len(fresh), {kind: str(names[place]) for kind, place in chosen.items()}


async def measure_drawn(number, seed, calls, *, best, fresh, **options):
    """One tuning of a drawn world, what it recommends, and the exhaustive search beside it."""
    world = draw_world(number)
    tasks = world.tasks(ASKED, seed)
    found = await measure_questions(
        (world.pool, world.clients(), grade, tasks, fresh), seed, calls, **options
    )
    share, by = best
    return (
        {"world": world.name, "seed": seed, "exhaustive": round(100 * share, 1)}
        | found
        | {"by": by}
    )


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worlds", default="0-9")
    options.add_argument("--seeds", default="1,2")
    options.add_argument("--calls", type=int, default=6000)
    options.add_argument("--known", help="a file of exhaustive searches, read and added to")
    said = options.parse_args()
    limit_blas_to_one_thread()
    first, _, last = said.worlds.partition("-")
    path = Path(said.known) if said.known else None
    known = json.loads(path.read_text()) if path and path.exists() else {}
    for number in range(int(first), int(last or first) + 1):
        name, fresh = f"drawn-{number}", draw_world(number).tasks(FRESH, seed=9_999)
        if name not in known:
            known[name] = search_exhaustively(draw_world(number), fresh)
            if path:
                path.write_text(json.dumps(known, indent=1))
        for seed in map(int, said.seeds.split(",")):
            tuning = partial(measure_drawn, number, seed, said.calls, best=known[name], fresh=fresh)
            print(json.dumps(anyio.run(tuning)), flush=True)


if __name__ == "__main__":
    main()
