"""The share right of any workflow in a drawn world, for a whole kind of question at once.

    python recipes/tune/shares.py --worlds 700-723

The programs of `tests/lab/tune/drawn_worlds.py` answer one prompt at a time, and the exhaustive search of
`drawn.py` takes minutes for a world. Here all questions of a kind are drawn as arrays by the
same rules, so a workflow takes a tenth of a millisecond, and what a choice lost is known for every
workflow that a search tried, not only for those that were nominated. One line of JSON for each world:
the best share right over its kinds, and what is left of it with fewer steps or without asking a
worker twice. "Paid" is the choice that counts each call with a point, as `tune` does.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.lab.tune.library import Candidate, StepRole
from lab.tune.drawn_worlds import draw_world
from lab.tune.worlds import every_candidate

QUESTIONS, STEPS, CALL_WEIGHT = 4000, 4, 0.01
_PREPARES = {StepRole.PLAN: "plan", StepRole.LOOK_UP: "facts"}
_SAMPLES, _WRONG = 3, 7
"""Answers of one worker to one prompt, as many as a workflow asks for; and the different wrong ones."""
RIGHT = 0


class KindOfQuestion:
    """All questions of one kind of a drawn world, and what each worker does with them.

    An answer is 0 where it is right, and otherwise the number of the wrong one.
    """

    def __init__(self, world, kind, questions=QUESTIONS, seed=0):
        """Draw the questions."""
        self.world, self.kind, self.questions = world, kind, questions
        skills, many = list(world.skills.values()), len(world.skills)
        self.number = {name: at for at, name in enumerate(world.skills)}
        rng = np.random.default_rng([*map(ord, world.name), world.kinds.index(kind), seed])

        def draw(*shape):
            return rng.random((*shape, questions), dtype=np.float32)

        def column(of):
            return np.array([of(one) for one in skills], np.float32)[:, None]

        self.long = np.arange(questions) % 2 == 1
        self.good = {
            "plan": draw(many) < column(lambda one: one.plan[kind]),
            "facts": draw(many) < column(lambda one: one.facts[kind]),
        }
        self.able = [one.solve[kind] for one in skills]
        fixed = draw(many) < column(lambda one: one.repeats)
        same, of_all, own, anew = draw() < world.shared, draw(), draw(many), draw(many, _SAMPLES)
        alone = np.where(fixed[:, None], own[:, None], anew)
        self.chance = np.where(same, of_all, alone)
        wrong, alike = self._draw_wrong(rng, many, _SAMPLES), self._draw_wrong(rng)
        is_alike = draw() < world.alike
        self.wrong = np.where(is_alike, alike, np.where(fixed[:, None], wrong[:, :1], wrong))
        self.spoiled = np.where(is_alike, alike, wrong[:, 1])
        self.ties = draw(many, _WRONG + 1)
        self.judges = draw(many) < column(lambda one: one.judges)
        self.breaks = draw(many) < column(lambda one: one.breaks[kind])
        self.mends = draw(many, _WRONG + 1) < column(lambda one: one.mends[kind])[..., None]
        self._solved = {}

    def _draw_wrong(self, rng, *shape):
        return rng.integers(1, _WRONG + 1, size=(*shape, self.questions), dtype=np.int8)

    def solve(self, worker, prepared, sample):
        """Return the answers of a worker that reads what was prepared: pairs of a word and who."""
        key = worker, prepared, sample
        if key not in self._solved:
            able = np.full(self.questions, self.able[worker], np.float32)
            for word, good_w in self.good.items():
                helper = self.world.helpers[word, self.kind]
                read = [good_w[who] for what, who in prepared if what == word]
                good = np.any(read, axis=0) if read else np.zeros(self.questions, bool)
                bad = ~np.all(read, axis=0) if read else good
                lost = self.long & ~good & helper.needed
                helped = np.where(good, able + (1 - able) * helper.gain, able)
                able = np.where(lost, np.minimum(able, self.world.lost), helped)
                able = np.where(bad & ~good, able * (1 - helper.loss), able)
            is_right = self.chance[worker, sample] < able
            self._solved[key] = np.where(is_right, RIGHT, self.wrong[worker, sample])
        return self._solved[key]

    def decide(self, worker, answers):
        """Return the answers of a worker that reads those of several."""
        said = np.stack(answers)
        count = (said[:, None] == said[None]).sum(axis=0)
        order = count + self.ties[worker][said, np.arange(self.questions)]
        usual = np.take_along_axis(said, order.argmax(axis=0)[None], axis=0)[0]
        return np.where((said == RIGHT).any(axis=0) & self.judges[worker], RIGHT, usual)

    def check(self, worker, answer):
        """Return the answers of a worker that checks another's."""
        kept = np.where(self.breaks[worker], self.spoiled[worker], RIGHT)
        mended = np.where(self.mends[worker, answer, np.arange(self.questions)], RIGHT, answer)
        return np.where(answer == RIGHT, kept, mended)

    def _prepares(self, step):
        """Tell whether the step is a plan or a look-up; some outlines are solutions instead."""
        is_outline = step.role is StepRole.PLAN and step.wording == 1
        return step.role in _PREPARES and not (is_outline and self.world.outline_solves)

    def measure(self, candidate: Candidate):
        """Return the share right of a workflow, and its mean calls."""
        prepared, solved, answers, times = [], [], [], {}
        calls, stopped = np.zeros(self.questions), np.zeros(self.questions, bool)
        for at, step in enumerate(candidate.steps):
            worker = self.number[step.worker]
            if candidate.stops and at == candidate.first_round:
                stopped, prepared = answers[-1] == answers[-2], []
            calls += ~stopped
            if step.role in _PREPARES:
                prepared += [(_PREPARES[step.role], worker)] if self._prepares(step) else []
                continue
            if step.role is StepRole.SOLVE:
                sample = times[worker] = times.get(worker, -1) + 1
                answer = self.solve(worker, tuple(prepared), sample)
                solved.append(answer)
            elif step.role is StepRole.DECIDE:
                answer = self.decide(worker, solved)
            else:
                answer = self.check(worker, answers[-1])
            answers.append(np.where(stopped, answers[-1], answer) if answers else answer)
        return float((answers[-1] == RIGHT).mean()), float(calls.mean())


def describe_world(number, steps=STEPS):
    """Return the best shares right of a world, over all its kinds."""
    world = draw_world(number)
    every = every_candidate(world.workers, steps)
    length = np.array([len(one) for one in every])
    solvers = [[step.worker for step in one.of_role(StepRole.SOLVE)] for one in every]
    once = np.array([len(set(one)) == len(one) for one in solvers])
    rows = []
    for kind in world.kinds:
        drawn = KindOfQuestion(world, kind)
        share, calls = np.array([drawn.measure(one) for one in every]).T
        best = [share[length <= most].max() for most in range(1, steps + 1)]
        paid = share[(share - CALL_WEIGHT * calls).argmax()]
        near = (share > share.max() - 0.02).sum()
        rows.append([*best, paid, share[once].max(), near])
    *shares, near = np.mean(rows, axis=0)
    names = [*(f"{most} steps" for most in range(1, steps + 1)), "paid", "nobody twice"]
    found = {name: round(100 * float(one), 1) for name, one in zip(names, shares, strict=True)}
    return {"world": world.name, "workers": len(world.workers)} | found | {"within 2": int(near)}


def main():
    """Reads the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worlds", default="0-9")
    options.add_argument("--steps", type=int, default=STEPS)
    said = options.parse_args()
    first, _, last = said.worlds.partition("-")
    for number in range(int(first), int(last or first) + 1):
        print(json.dumps(describe_world(number, said.steps)), flush=True)


if __name__ == "__main__":
    main()
