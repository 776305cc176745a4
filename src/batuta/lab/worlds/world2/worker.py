"""A worker of world 2: its traits are drawn, its replies are simulated from the correct answer.

design/0015-world-2.md explains the distribution.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import final

import anyio.lowlevel

from batuta.core import CallListener, Delta, Finish, Price, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.worlds.client import make_reply, split_fragments
from batuta.lab.worlds.drawn_pools import draw_named
from batuta.lab.worlds.prompt_parser import ParsedPrompt, parse_prompt
from batuta.lab.worlds.seeded_random import seeded_generator, uniform_number, uniform_numbers
from batuta.lab.worlds.world2.questions import (
    KINDS,
    World2Question,
    count_lighthouses,
    make_wrong_answer,
    read_world2_question,
)
from batuta.language.instructions import InstructionKind, classify_instruction

ABILITY_SPREAD = 0.74
TASTE_SPREAD = 0.69
"""Standard deviations of a worker's ability, and of its deviation in a family, in probits."""
LEVEL_SLOPE = 0.25
"""Probits by which a question is harder for each level."""
MIDDLE_LEVEL = 3.5
ITEM_SHARE, OWN_SHARE, FRESH_SHARE = 0.400, 0.355, 0.245
"""Shares of the latent variable's variance: of the question, of the worker on the question, and of
the call."""
TRAP_RATE, OWN_MISTAKE_RATE = 0.34, 0.56
"""Shares of wrong answers: the question's trap, and the worker's own mistake; others are random."""
TRUST_RANGE = (0.05, 0.40)
DISCERNMENT_RANGE = (0.50, 0.90)
PLANNING_MEAN, PLANNING_SPREAD = 0.9, 0.4
WORDING_SPREAD = 0.15
PRICE_BASE, PRICE_SPREAD, PRICE_BY_ABILITY = 0.5, 0.6, 0.8
PRICE_SHARE_IN = 0.25
"""The price of an input token as a share of an output token's."""

NORMAL = NormalDist()
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTraits:
    """The drawn traits of a worker; conductors see only the worker's measured card."""

    name: str
    ability: float
    """Ability over all families, in probits; 0 on average."""
    tastes: tuple[tuple[str, float], ...]
    """Additional ability by family, in probits."""
    planning: float
    """The probit of the probability of a correct plan for an average question."""
    trust: float
    """Probability of accepting an answer in the prompt without checking it."""
    discernment: float
    """Probability of choosing the correct answer from several answers, if it is among them."""
    price: float
    """Dollars per million output tokens."""

    def skill(self, family: str) -> float:
        """Return the ability in that family at the middle level, in probits."""
        return self.ability + dict(self.tastes)[family] + KINDS[family].base


def normal_number(*parts: object) -> float:
    """Return a standard normal number that depends on every part and on nothing else."""
    return NORMAL.inv_cdf(min(1 - _TINY, max(_TINY, uniform_number("world 2", *parts))))


@lru_cache(maxsize=64)
def draw_traits(seed: int, count: int) -> tuple[WorkerTraits, ...]:
    """Return `count` workers; a larger count only adds workers at the end."""
    rng = seeded_generator("world 2 workers", seed)

    def draw(name: str) -> WorkerTraits:
        ability = rng.gauss(0, ABILITY_SPREAD)
        return WorkerTraits(
            name=name,
            ability=ability,
            tastes=tuple((family, rng.gauss(0, TASTE_SPREAD)) for family in KINDS),
            planning=rng.gauss(PLANNING_MEAN, PLANNING_SPREAD),
            trust=rng.uniform(*TRUST_RANGE),
            discernment=rng.uniform(*DISCERNMENT_RANGE),
            price=PRICE_BASE * math.exp(rng.gauss(0, PRICE_SPREAD) + PRICE_BY_ABILITY * ability),
        )

    return draw_named(rng, count, draw)


PLAN_GAIN = 0.125
"""Probits, per level above the first, that reading a correct plan adds."""
PLAN_LOSS = 0.6
"""Probits that reading a wrong plan subtracts if the worker does not notice the error."""
PLAN_BY_ABILITY, PLAN_BY_LEVEL = 0.3, 0.15
"""Probits that each probit of ability adds to planning, and that each level subtracts."""
FACT_EASE = 0.5
"""Probits by which knowing a fact is easier than answering a question on facts."""
ALL_FACTS_GAIN, FALSE_FACT_LOSS, SOME_FACTS_GAIN = 1.2, 1.0, 0.2
"""Probits that reading all facts adds, that reading a false fact subtracts, and that reading some
facts adds (times their share)."""
COIN = 0.5
WORLD2_SCOPE_REPLY = (
    "This is a simulated worker of world 2, which can only answer that world's own questions."
)
_PLAN = re.compile(r"^Plan:\n((?:\d+\. .+(?:\n|$))+)", re.MULTILINE)
_PLAN_LINE = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_FACT_RELATION = "lighthouses"
_CHECKS = (InstructionKind.VERIFY, InstructionKind.REPAIR)


class World2Worker:
    """Simulates one worker on one prompt."""

    __slots__ = ("_prompt", "_question", "_seed", "_traits")

    def __init__(
        self, traits: WorkerTraits, question: World2Question, prompt: ParsedPrompt, seed: int
    ) -> None:
        self._traits = traits
        self._question = question
        self._prompt = prompt
        self._seed = seed

    def write_reply(self) -> str:
        """Return the worker's reply to the prompt."""
        kind = self._asked_kind()
        if kind is InstructionKind.PLAN:
            return f"Plan:\n{_number_lines(self.make_plan())}"
        if kind is InstructionKind.LOOK_UP:
            return self._write_facts()
        read = [reply.answer for reply in self._prompt.replies if reply.answer is not None]
        if kind is InstructionKind.FORMAT and read:
            return f"Answer: {read[-1]}"
        if kind in _CHECKS and read:
            return self._write_check(read[-1])
        if kind is InstructionKind.COMPARE and read:
            return f"I compared {len(read)} answers.\nAnswer: {self._choose_among(read)}"
        return self._write_solution(read, alone=kind is InstructionKind.SECOND)

    def _asked_kind(self) -> InstructionKind:
        """Return the kind of work that the prompt asks for.

        The last step solves instead of planning or looking up facts.
        """
        asked = self._prompt.instruction
        kind = InstructionKind.SOLVE if asked is None else classify_instruction(asked)
        helping = kind in {InstructionKind.PLAN, InstructionKind.LOOK_UP}
        if kind is InstructionKind.UNKNOWN or (helping and self._prompt.is_last_step):
            return InstructionKind.SOLVE
        return kind

    # -- finding an answer ----------------------------------------------------------------

    def find_answer(self) -> str:
        """Return the worker's own answer to the question, correct or wrong."""
        who, text = self._traits.name, self._question.text
        fresh = normal_number("fresh", who, self._seed, self._prompt.text)
        latent = (
            self._traits.skill(self._question.kind.name)
            - LEVEL_SLOPE * (self._question.level - MIDDLE_LEVEL)
            + self._help_from_plans()
            + self._help_from_facts()
            + self._taste_for_wording()
            + math.sqrt(ITEM_SHARE) * normal_number("item", text)
            + math.sqrt(OWN_SHARE) * normal_number("own", who, text)
            + math.sqrt(FRESH_SHARE) * fresh
        )
        return self._question.answer if latent > 0 else self._draw_mistake()

    def _draw_mistake(self) -> str:
        which, pick, *_ = uniform_numbers(
            "world 2 mistake", self._traits.name, self._seed, self._prompt.text
        )
        text = self._question.text
        if which < TRAP_RATE:
            pick = uniform_number("world 2 trap", text)
        elif which < TRAP_RATE + OWN_MISTAKE_RATE:
            pick = uniform_number("world 2 own mistake", self._traits.name, text)
        return make_wrong_answer(self._question, pick)

    def _taste_for_wording(self) -> float:
        asked = (self._prompt.instruction or "").strip(" .").casefold()
        return WORDING_SPREAD * normal_number("wording", self._traits.name, asked) if asked else 0.0

    def _help_from_plans(self) -> float:
        """Return the effect of the last plan in the prompt, in probits."""
        plans = _PLAN.findall(self._prompt.text)
        if not plans or not self._question.kind.plan_helps:
            return 0.0
        if tuple(_PLAN_LINE.findall(plans[-1])) == self._question.elements:
            return PLAN_GAIN * (self._question.level - 1)
        seen = uniform_number("world 2 notices", self._traits.name, self._question.text)
        return 0.0 if seen < COIN else -PLAN_LOSS

    def _help_from_facts(self) -> float:
        """Return the effect of the facts in the prompt, in probits."""
        if not self._question.kind.facts_help:
            return 0.0
        facts = [
            (subject, value)
            for reply in self._prompt.replies
            for (relation, subject), value in reply.facts.items()
            if relation == _FACT_RELATION and subject in self._question.elements
        ]
        if any(value != str(count_lighthouses(subject)) for subject, value in facts):
            return -FALSE_FACT_LOSS
        share = len({subject for subject, _ in facts}) / len(self._question.elements)
        return ALL_FACTS_GAIN if share >= 1 else SOME_FACTS_GAIN * share

    # -- helping others -------------------------------------------------------------------

    def make_plan(self) -> tuple[str, ...]:
        """Return the question's elements in order; a wrong plan lacks or doubles an element."""
        who, elements = self._traits, self._question.elements
        able = who.skill(self._question.kind.name) - self._question.kind.base
        level = self._question.level - MIDDLE_LEVEL
        share = NORMAL.cdf(who.planning + PLAN_BY_ABILITY * able - PLAN_BY_LEVEL * level)
        drawn, pick, *_ = uniform_numbers("world 2 plan", who.name, self._question.text)
        if drawn < share:
            return elements
        at = int(pick * len(elements))
        if len(elements) == 1:
            return (elements[0], elements[0])
        return (*elements[:at], *elements[at + 1 :])

    def _write_facts(self) -> str:
        if not self._question.kind.facts_help:
            return "There are no facts to look up for this."
        share = NORMAL.cdf(self._traits.skill(self._question.kind.name) + FACT_EASE)
        lines: list[str] = []
        for town in self._question.elements:
            known, left_out, pick, *_ = uniform_numbers("world 2 fact", self._traits.name, town)
            value = count_lighthouses(town)
            if known >= share:
                if left_out < COIN:
                    continue
                value += 1 + int(pick * 9)
            lines.append(f"- {_FACT_RELATION} of {town}: {value}")
        return "\n".join(["What I know of it:", *lines]) if lines else "I know no facts of this."

    # -- answering ------------------------------------------------------------------------

    def _write_solution(self, read: Sequence[str], *, alone: bool) -> str:
        answer = self.find_answer()
        if read and not alone and self._trusts(read[-1]):
            answer = read[-1]
        working = "; ".join(self._question.elements)
        return f"I go through it: {working}.\nAnswer: {answer}"

    def _write_check(self, claim: str) -> str:
        settled = self.settle_on(claim)
        if settled == claim:
            return f"Verdict: correct.\nAnswer: {claim}"
        working = "; ".join(self._question.elements)
        return f"Verdict: wrong. I find this: {working}.\nAnswer: {settled}"

    def settle_on(self, claim: str) -> str:
        """Return the answer for which the worker decides: the claim or its own answer."""
        if self._trusts(claim):
            return claim
        own = self.find_answer()
        return own if own == claim else self._pick_among([claim, own])

    def _choose_among(self, read: Sequence[str]) -> str:
        """Return the answer with the most votes, the worker's own vote included."""
        votes = Counter([*read, self.find_answer()]).most_common()
        best = [answer for answer, count in votes if count == votes[0][1]]
        return best[0] if len(best) == 1 else self._pick_among(best)

    def _pick_among(self, answers: Sequence[str]) -> str:
        """Return the correct answer with probability `discernment`, if listed, else another."""
        correct = self._question.answer
        drawn, pick, *_ = uniform_numbers(
            "world 2 discerns", self._traits.name, self._seed, self._prompt.text
        )
        if correct in answers:
            if drawn < self._traits.discernment:
                return correct
            answers = [answer for answer in answers if answer != correct]
        return answers[int(pick * len(answers))]

    def _trusts(self, claim: str) -> bool:
        drawn = uniform_number(
            "world 2 trust", self._traits.name, claim, self._seed, self._prompt.text
        )
        return drawn < self._traits.trust


def _number_lines(parts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {part}" for number, part in enumerate(parts, 1))


@final
class World2Client:
    """A worker of world 2 as a client: a program that draws its answers, not a language model."""

    def __init__(self, traits: WorkerTraits, price: Price) -> None:
        self._traits = traits
        self._price = price

    def __repr__(self) -> str:
        return f"World2Client({self._traits.name!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply, which depends only on the request's text and seed."""
        reply = self.reply(request)
        await anyio.lowlevel.checkpoint()
        if listener.streaming:
            for fragment in split_fragments(reply.text):
                await listener.on_delta(Delta(text=fragment))
        return reply

    def reply(self, request: Request) -> Reply:
        """Return the reply without awaiting anything."""
        prompt = parse_prompt(request)
        question = read_world2_question(prompt.question)
        if question is None:
            text, finish = WORLD2_SCOPE_REPLY, Finish.DECLINED
        else:
            seed = request.sampling.seed or 0
            text = World2Worker(self._traits, question, prompt, seed).write_reply()
            finish = Finish.STOP
        name = f"world2/{self._traits.name}"
        return make_reply(request, text, finish, price=self._price, model=name)
