"""Small worlds that differ in what pays: who is asked, checks, plans and look-ups, votes.

Workers are programs: each reads its prompt as the engine writes it, and what it answers depends on
the prompt, the question and the worker alone. The truth stands in the question's number, which
only the world can read.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b

from batuta.clients import ScriptedClient
from batuta.core import Grade, Pool, Price, Task, TaskId, Worker, WorkerId
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole, is_candidate

PRICE = Price(input=Decimal("0.5"), output=Decimal(2))
KINDS = {
    "bills": "Add up the bill with {n} items for table {i} and name the total.",
    "roads": "Which road leads from village {i} over {n} crossings to the harbour?",
    "verbs": "Conjugate {n} verbs of lesson {i} and count those with an irregular ending.",
}
_TASK = re.compile(r"<overall_task>\n(.*?)\n</overall_task>", re.DOTALL)
_SAID = re.compile(r'<agent_response step="\d+">\n(.*?)\n</agent_response>', re.DOTALL)
_ANSWER = re.compile(r"Answer: (-?\d+)")
_ROLES = (
    (StepRole.PLAN, ("Plan how", "Outline")),
    (StepRole.LOOK_UP, ("Look up",)),
    (StepRole.DECIDE, ("Compare",)),
    (StepRole.CHECK, ("Check the", "Verify the")),
)


def roll(*about):
    digest = blake2b(repr(about).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def truth(question):
    return int(roll("truth", question) * 90_000) + 10_000


def length(question):
    return int(re.findall(r"\d+", question)[0 if question.startswith(("Add", "Conj")) else -1])


def kind(question):
    return {"A": "bills", "W": "roads", "C": "verbs"}[question[0]]


@dataclass(frozen=True)
class World:
    """What the workers can do; a share, or a share by kind of question, for each worker."""

    name: str
    solve: dict
    check: dict = field(default_factory=dict)
    """How often a slip that is read is mended."""
    plan: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    needs: dict = field(default_factory=dict)
    """Kind to what it needs once it is long: `plan` or `facts`; without it a solver is lost."""
    shared: float = 0.0
    """Share of slips that all workers make on the same questions."""

    @property
    def workers(self):
        return tuple(WorkerId(name) for name in self.solve)

    @property
    def pool(self):
        return Pool(
            tuple(Worker(id=name, model=f"model-{name}", price=PRICE) for name in self.workers)
        )

    def clients(self):
        return {
            w: ScriptedClient(
                lambda request, w=w: self.answer(w, request.messages[-1].text), price=PRICE
            )
            for w in self.workers
        }

    def answer(self, worker, prompt, seed=0):
        """Return the worker's reply, which is the same for every seed."""
        task = _TASK.search(prompt)
        if task is None:
            return self._solve(worker, prompt.strip(), ())
        question, said = task[1], _SAID.findall(prompt)
        order = prompt.rpartition("Your assigned subtask: ")[2]
        role = next((role for role, starts in _ROLES if order.startswith(starts)), StepRole.SOLVE)
        if role in {StepRole.PLAN, StepRole.LOOK_UP}:
            able = self.plan if role is StepRole.PLAN else self.facts
            word = "plan" if role is StepRole.PLAN else "facts"
            good = roll(word, worker, question) < share(able.get(worker, 0.0), kind(question))
            return f"The {word}: {'as it is' if good else 'astray'}."
        if role is StepRole.SOLVE:
            return self._solve(worker, question, said)
        seen = [int(found[-1]) for text in said if (found := _ANSWER.findall(text))]
        if not seen:
            return self._solve(worker, question, said)
        if role is StepRole.DECIDE:
            return f"Answer: {max(seen, key=lambda one: (seen.count(one), roll('tie', worker, question, one)))}"
        return self._checked(worker, question, seen[-1])

    def _solve(self, worker, question, said):
        able = share(self.solve[worker], kind(question))
        need = self.needs.get(kind(question))
        if need and length(question) > 4:
            helped = any(f"The {need}: as it is" in text for text in said)
            able = able if helped else 0.1
        same = roll("same", question) < self.shared
        chance = roll("solve", question) if same else roll("solve", worker, question)
        return f"Answer: {truth(question) if chance < able else wrong(worker, question)}"

    def _checked(self, worker, question, seen):
        mends = share(self.check.get(worker, 0.0), kind(question))
        if seen == truth(question):
            spoils = roll("spoil", worker, question, seen) < 0.08 * (1 - mends)
            return f"Answer: {wrong(worker, question) if spoils else seen}"
        mended = roll("mend", worker, question, seen) < mends
        return f"Answer: {truth(question) if mended else seen}"

    def tasks(self, count, seed=0, *, labelled=True):
        made = {}
        for n in range(3 * count):
            name = tuple(KINDS)[n % 3]
            items, i = 1 + int(roll("n", seed, n) * 8), int(roll("i", seed, n) * 100_000)
            text = KINDS[name].format(n=items, i=i)
            made[text] = Task(id=TaskId(f"{self.name}-{seed}-{n}"), question=text, target=str(truth(text)), grader="integer",
                              tags=(name,) if labelled else ("all",), difficulty=float(items))  # fmt: skip
            if len(made) == count:
                break
        return tuple(made.values())


def share(able, of):
    return able[of] if isinstance(able, dict) else able


def wrong(worker, question):
    return truth(question) + 1 + int(roll("wrong", worker, question) * 5)


async def grade(task, answer):
    found = _ANSWER.findall(answer)
    return Grade(float(bool(found) and found[-1] == task.target))


def expert(of):
    return {name: 0.85 if name == of else 0.3 for name in KINDS}


EXPERTS = World(
    "experts",
    {"ada": expert("bills"), "ben": expert("roads"), "cleo": expert("verbs"), "dora": 0.45},
)
CHECKS = World("checks", {"ada": 0.62, "ben": 0.5, "cleo": 0.4}, check={"ada": 0.1, "ben": {"bills": 0.85, "roads": 0.1, "verbs": 0.1}, "cleo": {"bills": 0.1, "roads": 0.85, "verbs": 0.75}})  # fmt: skip
HELP = World("help", {"ada": 0.85, "ben": 0.55, "cleo": 0.5}, plan={"ada": 0.2, "ben": 0.95, "cleo": 0.3}, facts={"ada": 0.2, "ben": 0.3, "cleo": 0.95}, needs={"bills": "plan", "roads": "facts"})  # fmt: skip
VOTES = World("votes", {"ada": 0.68, "ben": 0.66, "cleo": 0.64}, shared=0.1)
ALL = {world.name: world for world in (EXPERTS, CHECKS, HELP, VOTES)}


def every_candidate(workers, steps):
    """Every workflow of the library of so many steps at most, in its first phrasings."""
    order = list(StepRole)
    found, grown = [], [()]
    for _ in range(steps):
        grown = [
            (*before, CandidateStep(role, worker))
            for before in grown
            for role in order
            if not before or order.index(role) >= order.index(before[-1].role)
            for worker in workers
        ]
        found += [Candidate(some) for some in grown if is_candidate(some)]
    return found
