"""Learns a SkillOrchestra handbook from outcomes, with a model that names and labels skills."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import anyio
import numpy as np

from batuta.clients.decoding import as_array, as_object
from batuta.errors import ConfigError
from batuta.lab.baselines.routing.arrays import Floats
from batuta.lab.baselines.routing.skill_orchestra import (
    NAME,
    Handbook,
    RoutingSkill,
    demand_prompt,
    read_demand,
    read_rows,
)
from batuta.lab.learners.history import History

Ask = Callable[[str], Awaitable[str]]
"""Calls the orchestrating model and returns its reply; an empty string stands for no reply."""

QUESTIONS = 100
"""Maximum number of questions that are labelled, at one call each; the authors label 40."""
VALIDATED = 4
"""One labelled question in this many is held out to choose the handbook's depth."""
SHOWN = 20
"""Maximum number of questions shown to the model that names the skills."""
MOST_SKILLS = 24
"""Maximum number of skills; further skills in the reply are ignored."""
ATTEMPTS = 3
"""Number of times the model is asked for skills before learning fails."""
_SHOWN_CHARACTERS = 300

DISCOVERY = """\
Several models answered the questions below; beside each question stands who was right. Find the \
skills that questions need and that tell the models apart: what one model can do and another \
cannot. Put them into 2 to 6 categories with 1 to 4 skills each. A skill is a kind of work (such \
as "adding up a bill"), not the subject of one question; every question should need one of them.

{questions}

Write one JSON object and nothing else:
{{"categories": [{{"name": "category_name", "skills": [{{"skill_id": "short_name", "description": \
"what it is, in a sentence", "indicators": ["words in questions that need it"]}}]}}]}}"""


async def learn_handbook(
    history: History, ask: Ask, *, seed: int = 0, concurrency: int = 16
) -> Handbook:
    """Learn a handbook, by up to three calls to find skills and one for each labelled question.

    `ask` calls the orchestrating model, at most `concurrency` times at once; `seed` draws the
    questions that are shown and labelled.

    Raises:
        ConfigError: the model names no skill in any attempt.
    """
    known = history.drop_unscored()
    order = Random(f"skills {seed}").sample(range(len(known.questions)), len(known.questions))
    chosen = known.select(np.asarray(order[:QUESTIONS], int))
    skills = await _discover_skills(chosen, ask)
    demands = await _label_questions(chosen.questions, skills, ask, concurrency)
    is_held_q = np.arange(len(demands)) % VALIDATED == VALIDATED - 1
    counted = count_outcomes(chosen, skills, demands, ~is_held_q)
    depth = max(
        (0, 1, 2),
        key=lambda depth: (
            _routed_credit(chosen, replace(counted, depth=depth), demands, is_held_q),
            -depth,
        ),
    )
    return replace(
        count_outcomes(chosen, skills, demands, np.ones(len(demands), bool)), depth=depth
    )


async def _discover_skills(history: History, ask: Ask) -> tuple[RoutingSkill, ...]:
    prompt = DISCOVERY.format(
        questions="\n\n".join(_describe_question(history, q) for q in _choose_shown(history))
    )
    for _ in range(ATTEMPTS):
        if skills := read_skills(await ask(prompt)):
            return skills
    raise ConfigError(f"{NAME}: the model named no skill in {ATTEMPTS} replies")


def _choose_shown(history: History) -> list[int]:
    """Return the indices of the questions on which the workers' scores differ most."""
    scores_qm = history.scores_qm
    spread_q = np.nanmax(scores_qm, axis=1) - np.nanmin(scores_qm, axis=1)
    return np.argsort(-spread_q, kind="stable")[:SHOWN].tolist()


def _describe_question(history: History, q: int) -> str:
    marks = (
        f"{worker} {'right' if score >= 0.5 else 'wrong'}"  # noqa: PLR2004 - half of the credit
        for worker, score in zip(history.workers, history.scores_qm[q].tolist(), strict=True)
        if not np.isnan(score)
    )
    return f"Question: {history.questions[q][:_SHOWN_CHARACTERS]}\n{', '.join(marks)}"


def read_skills(reply: str) -> tuple[RoutingSkill, ...]:
    """Return the skills that a reply names; an empty tuple if it cannot be read."""
    found: dict[str, RoutingSkill] = {}
    for category in read_rows(reply, "categories"):
        for row in map(as_object, as_array(category.get("skills"))):
            if not (row.get("skill_id") and category.get("name")):
                continue
            id_ = f"{category['name']}.{str(row['skill_id']).rpartition('.')[2]}".replace(" ", "_")
            indicators = tuple(map(str, as_array(row.get("indicators"))))
            found.setdefault(id_, RoutingSkill(id_, str(row.get("description", "")), indicators))
    return tuple(found.values())[:MOST_SKILLS]


async def _label_questions(
    questions: Sequence[str], skills: Sequence[RoutingSkill], ask: Ask, concurrency: int
) -> list[Mapping[str, float]]:
    found: list[Mapping[str, float]] = [{} for _ in questions]
    limiter = anyio.CapacityLimiter(concurrency)

    async def label(index: int, question: str) -> None:
        async with limiter:
            reply = await ask(demand_prompt(skills, question))
        found[index] = read_demand(reply, skills, question)

    async with anyio.create_task_group() as group:
        for index, question in enumerate(questions):
            group.start_soon(label, index, question)
    return found


def count_outcomes(
    history: History,
    skills: tuple[RoutingSkill, ...],
    demands: Sequence[Mapping[str, float]],
    counted_q: np.ndarray,
) -> Handbook:
    """Return a handbook of every worker's credit, questions and mean cost under each skill.

    A question counts fully under every skill that it needs, whatever the skill's share in
    `demands`. `counted_q` is the mask of the questions to count.
    """
    needs_qk = np.array([[float(s.id in demand) for s in skills] for demand in demands])
    needs_qk = needs_qk * counted_q[:, None]
    scores_qm, usd_qm = history.scores_qm.astype(np.float64), history.usd_qm
    known_qm, priced_qm = (~np.isnan(scores_qm)).astype(float), (~np.isnan(usd_qm)).astype(float)
    earned_qm = np.nan_to_num(scores_qm)
    priced_km: Floats = needs_qk.T @ priced_qm
    spent_km = needs_qk.T @ np.nan_to_num(usd_qm)
    return Handbook(
        workers=history.workers,
        skills=skills,
        right_km=needs_qk.T @ earned_qm,
        asked_km=needs_qk.T @ known_qm,
        usd_km=np.where(priced_km > 0, spent_km / np.maximum(priced_km, 1), np.nan),
        right_m=counted_q @ earned_qm,
        asked_m=counted_q @ known_qm,
    )


def _routed_credit(
    history: History,
    handbook: Handbook,
    demands: Sequence[Mapping[str, float]],
    held_q: np.ndarray,
) -> float:
    """Return the sum of scores that the handbook's choices earn on the held-out questions."""
    earned = (
        history.scores_qm[q, handbook.choose(demands[q], history.workers, price=0.0)]
        for q in map(int, np.flatnonzero(held_q))
    )
    return float(np.nansum(np.fromiter(earned, float)))
