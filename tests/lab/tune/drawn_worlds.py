"""Worlds drawn from a seed: three to five workers, each with skills of its own.

Worlds differ in who solves what, whether errors repeat when a worker is asked again and whether
workers make the same ones, whether plans are needed, help or harm, who can look things up, who
corrects and who spoils answers, who decides well, and how an outline is understood. Workers are
programs that read their prompts as the engine writes them, as in `worlds`.
"""

import random
import re
from dataclasses import dataclass
from decimal import Decimal

from batuta.clients import ScriptedClient
from batuta.conductors.sessions.review import JUDGE
from batuta.core import Pool, Price, Task, TaskId, Worker, WorkerId
from batuta.lab.tune.library import StepRole
from lab.tune.worlds import _ANSWER, _ROLES, _SAID, _TASK, roll

TEMPLATES = {
    "bills": "Add up the bill with {n} items for table {i} and name the total.",
    "roads": "Which road leads from village {i} over {n} crossings to the harbour?",
    "verbs": "Conjugate {n} verbs of lesson {i} and count those with an irregular ending.",
    "tides": "At harbour {i} the tide turns {n} times; when is the next high water?",
    "looms": "A loom weaves pattern {i} in {n} colours. How many threads does it take?",
    "stars": "Name the magnitude of star {i} after {n} corrections for dust.",
}
"""The questions of each kind; `n` is the length, from 1 to 8, and `i` tells them apart."""
_FIRST = {text.split()[0]: name for name, text in TEMPLATES.items()}
_NAMES = ("ada", "ben", "cleo", "dora", "emil")
LONG = 4
"""Questions with a greater `n` are long."""


@dataclass(frozen=True)
class Helper:
    """The effect of a plan or of looked-up facts on a solver, for one kind of question."""

    needed: bool
    """True if long questions cannot be solved without it."""
    gain: float
    """The share of a solver's failures that a good one mends."""
    loss: float
    """The share of a solver's successes that a bad one takes away."""


@dataclass(frozen=True)
class Skills:
    """The abilities of one worker, by kind of question."""

    solve: dict
    plan: dict
    facts: dict
    mends: dict
    """The rate at which a wrong answer in the context is corrected."""
    breaks: dict
    """The rate at which a right answer in the context is spoiled."""
    judges: float
    """The rate at which the right one of several answers is chosen, whatever the majority is."""
    repeats: float
    """The share of questions on which it gives the same answer each time."""
    price: Decimal


@dataclass(frozen=True)
class DrawnWorld:
    """A world; `draw_world` makes one."""

    name: str
    kinds: tuple
    skills: dict
    helpers: dict
    """(word, kind) to the effect of that help; word is `plan` or `facts`."""
    shared: float
    """Share of questions on which all workers err together."""
    alike: float
    """Share of wrong answers that are the same from every worker."""
    outline_solves: bool
    """True if workers answer the request for an outline with a solution."""
    lost: float
    """Share right of a solver who lacks what a long question needs."""

    @property
    def workers(self):
        return tuple(WorkerId(name) for name in self.skills)

    @property
    def pool(self):
        return Pool(
            tuple(
                Worker(id=WorkerId(name), model=f"model-{name}", price=Price(input=one.price, output=4 * one.price))
                for name, one in self.skills.items()
            )
        )  # fmt: skip

    def clients(self):
        def reply(request, who):
            seed = request.sampling.seed if request.sampling else 0
            return self.answer(who, request.messages[-1].text, seed)

        return {
            worker.id: ScriptedClient(lambda request, who=worker.id: reply(request, who), price=worker.price)
            for worker in self.pool
        }  # fmt: skip

    def answer(self, worker, prompt, seed=0):
        """Return the worker's reply; `seed` tells its samples apart."""
        if prompt.startswith(JUDGE):
            return "ACCEPT"
        task = _TASK.search(prompt)
        if task is None:
            return self._solve(worker, prompt.strip(), (), seed)
        question, said = task[1], _SAID.findall(prompt)
        order = prompt.rpartition("Your assigned subtask: ")[2]
        role = next((role for role, starts in _ROLES if order.startswith(starts)), StepRole.SOLVE)
        if order.startswith("Outline") and self.outline_solves:
            role = StepRole.SOLVE
        if role is StepRole.PLAN:
            return self._help("plan", worker, question, self.skills[worker].plan)
        if role is StepRole.LOOK_UP:
            return self._help("facts", worker, question, self.skills[worker].facts)
        seen = [int(found[-1]) for text in said if (found := _ANSWER.findall(text))]
        if role is StepRole.SOLVE or not seen:
            return self._solve(worker, question, said, seed)
        if role is StepRole.DECIDE:
            return self._decide(worker, question, seen)
        return self._check(worker, question, seen[-1])

    def _help(self, word, worker, question, able):
        good = roll(self.name, word, worker, question) < able[kind_of(question)]
        return f"The {word}: {'as it is' if good else 'astray'}."

    def _solve(self, worker, question, said, seed):
        kind, skills = kind_of(question), self.skills[worker]
        able = skills.solve[kind]
        for word in ("plan", "facts"):
            helper = self.helpers[word, kind]
            good = any(f"The {word}: as it is" in text for text in said)
            bad = any(f"The {word}: astray" in text for text in said)
            if helper.needed and length_of(question) > LONG and not good:
                able = min(able, self.lost)
            elif good:
                able += (1 - able) * helper.gain
            if bad and not good:
                able *= 1 - helper.loss
        same = roll(self.name, "same", question) < self.shared
        fixed = roll(self.name, "fixed", worker, question) < skills.repeats
        about = ("solve", question) if same else ("solve", worker, question)
        chance = roll(self.name, *about) if fixed or same else roll(self.name, *about, seed)
        if chance < able:
            return f"Answer: {truth_of(question)}"
        return f"Answer: {self._wrong(worker, question, 0 if fixed else seed)}"

    def _wrong(self, worker, question, seed):
        alike = roll(self.name, "alike", question) < self.alike
        about = ("wrong", question) if alike else ("wrong", worker, question, seed)
        return truth_of(question) + 1 + int(roll(self.name, *about) * 7)

    def _decide(self, worker, question, seen):
        right = truth_of(question)
        if (
            right in seen
            and roll(self.name, "judge", worker, question) < self.skills[worker].judges
        ):
            return f"Answer: {right}"
        chosen = max(seen, key=lambda one: (seen.count(one), roll("tie", worker, question, one)))
        return f"Answer: {chosen}"

    def _check(self, worker, question, seen):
        kind, skills, right = kind_of(question), self.skills[worker], truth_of(question)
        about = worker, question, seen
        if seen == right:
            spoils = roll(self.name, "spoil", *about) < skills.breaks[kind]
            return f"Answer: {self._wrong(worker, question, 1) if spoils else seen}"
        mended = roll(self.name, "mend", *about) < skills.mends[kind]
        return f"Answer: {right if mended else seen}"

    def tasks(self, count, seed=0, *, labelled=True):
        made = {}
        n = 0
        while len(made) < count:
            kind = self.kinds[int(roll("k", self.name, seed, n) * len(self.kinds))]
            long, i = 1 + int(roll("n", seed, n) * 8), int(roll("i", seed, n) * 1_000_000)
            text = TEMPLATES[kind].format(n=long, i=i)
            made[text] = Task(id=TaskId(f"{self.name}-{seed}-{n}"), question=text, target=str(truth_of(text)),
                              grader="integer", tags=(kind,) if labelled else ("all",), difficulty=float(long))  # fmt: skip
            n += 1
        return tuple(made.values())


def kind_of(question):
    return _FIRST[question.split()[0]]


def length_of(question):
    kind = kind_of(question)
    pattern = re.escape(TEMPLATES[kind]).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{i\}", r"\d+")
    return int(re.fullmatch(pattern, question)["n"])


def truth_of(question):
    return int(roll("truth", question) * 90_000) + 10_000


def draw_world(seed):
    """The world of that seed."""
    rng = random.Random(f"world {seed}")
    kinds = tuple(rng.sample(sorted(TEMPLATES), rng.choice((3, 3, 4))))
    workers = _NAMES[: rng.choice((3, 4, 5))]
    experts = rng.random() < 0.5
    checks, judges = rng.choice((0.2, 0.5, 0.9)), rng.choice((0.0, 0.3, 0.9))
    repeats = rng.choice((1.0, 1.0, 0.6, 0.0))

    def by_kind(low, high):
        return {kind: rng.uniform(low, high) for kind in kinds}

    def solver(number):
        if experts:
            best = kinds[number % len(kinds)]
            return {kind: rng.uniform(0.7, 0.92) if kind == best else rng.uniform(0.15, 0.5) for kind in kinds}  # fmt: skip
        base = rng.uniform(0.35, 0.7)
        return {kind: min(max(base + rng.gauss(0, 0.12), 0.1), 0.9) for kind in kinds}

    skills = {
        name: Skills(
            solve=solver(number),
            plan=by_kind(0.0, 1.0),
            facts=by_kind(0.6, 1.0) if rng.random() < 0.4 else by_kind(0.0, 0.3),
            mends=by_kind(0.0, checks),
            breaks=by_kind(0.0, rng.choice((0.05, 0.2, 0.4))),
            judges=rng.uniform(0, judges),
            repeats=repeats,
            price=Decimal(rng.choice(("0.25", "0.5", "1", "2"))),
        )
        for number, name in enumerate(workers)
    }
    helpers = {}
    for kind in kinds:
        need = rng.choice(("plan", "facts", "", "", ""))
        for word in ("plan", "facts"):
            gain, loss = rng.choice(((0.0, 0.5), (0.3, 0.2), (0.6, 0.1), (0.0, 0.0)))
            helpers[word, kind] = Helper(needed=need == word, gain=gain, loss=loss)
    return DrawnWorld(
        name=f"drawn-{seed}",
        kinds=kinds,
        skills=skills,
        helpers=helpers,
        shared=rng.choice((0.0, 0.15, 0.5)),
        alike=rng.choice((0.0, 0.3, 0.8)),
        outline_solves=rng.random() < 0.3,
        lost=rng.uniform(0.05, 0.25),
    )
