"""The pools of world 2: workers drawn from a seed, each with a card of measured skills."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache

from batuta.core import Client, Pool, Price, Skill, Worker, WorkerId
from batuta.lab.worlds.drawn_pools import (
    CARD_QUESTIONS,
    CARD_SEED,
    DEFAULT_COUNT,
    DEFAULT_SEED,
    mean_share,
)
from batuta.lab.worlds.prompt_parser import ParsedPrompt
from batuta.lab.worlds.seeded_random import uniform_number
from batuta.lab.worlds.world2.questions import (
    KINDS,
    World2Question,
    draw_world2_question,
    make_wrong_answer,
)
from batuta.lab.worlds.world2.worker import (
    PRICE_SHARE_IN,
    WorkerTraits,
    World2Client,
    World2Worker,
    draw_traits,
)


@lru_cache(maxsize=16)
def world2_pool(seed: int = DEFAULT_SEED, count: int = DEFAULT_COUNT) -> Pool:
    """Return `count` workers drawn by `seed`, with their measured cards."""
    return Pool(tuple(_measure_worker(traits) for traits in draw_traits(seed, count)))


def world2_clients(
    seed: int = DEFAULT_SEED, count: int = DEFAULT_COUNT
) -> Mapping[WorkerId, Client]:
    """Return a client for each worker of `world2_pool`."""
    return {
        WorkerId(traits.name): World2Client(traits, worker_price(traits))
        for traits in draw_traits(seed, count)
    }


def worker_price(traits: WorkerTraits) -> Price:
    """Return the price, in dollars per million tokens rounded to cents, at least one cent."""
    return Price(
        input=Decimal(f"{max(0.01, traits.price * PRICE_SHARE_IN):.2f}"),
        output=Decimal(f"{max(0.01, traits.price):.2f}"),
    )


def _measure_worker(traits: WorkerTraits) -> Worker:
    """Return the worker with a card of its accuracy on questions that it answers here."""
    skills = tuple(
        Skill(
            family=family,
            share=mean_share([_answers_correctly(traits, q) for q in _card_questions(family)]),
            questions=CARD_QUESTIONS,
        )
        for family in KINDS
    )
    names = list(KINDS)
    mixture = [_card_questions(names[n % len(names)])[n] for n in range(CARD_QUESTIONS)]
    checks = mean_share([_settles_correctly(traits, question) for question in mixture])
    plans = mean_share([_plans_correctly(traits, question) for question in mixture])
    return Worker(
        id=WorkerId(traits.name),
        model=f"world2/{traits.name}",
        description=f"Checks {checks:.0%}, plans {plans:.0%}.",
        tags=("world2", "simulated", "local"),
        context_window=32_768,
        price=worker_price(traits),
        strength=mean_share([skill.share for skill in skills]),
        skills=skills,
    )


@lru_cache(maxsize=64)
def _card_questions(family: str) -> tuple[World2Question, ...]:
    return tuple(draw_world2_question(family, (CARD_SEED, n)) for n in range(CARD_QUESTIONS))


def _bare_worker(traits: WorkerTraits, question: World2Question) -> World2Worker:
    prompt = ParsedPrompt(question=question.text, text=question.text)
    return World2Worker(traits, question, prompt, seed=0)


def _answers_correctly(traits: WorkerTraits, question: World2Question) -> bool:
    return _bare_worker(traits, question).find_answer() == question.answer


def _plans_correctly(traits: WorkerTraits, question: World2Question) -> bool:
    return _bare_worker(traits, question).make_plan() == question.elements


def _settles_correctly(traits: WorkerTraits, question: World2Question) -> bool:
    """Return whether the worker settles on the correct answer after reading it or a wrong one."""
    wrong = make_wrong_answer(question, uniform_number("world 2 card", question.text))
    is_correct = uniform_number("world 2 shown", question.text) < 0.5  # noqa: PLR2004 - a coin
    claim = question.answer if is_correct else wrong
    return _bare_worker(traits, question).settle_on(claim) == question.answer
