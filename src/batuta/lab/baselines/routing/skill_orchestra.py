"""SkillOrchestra: routes by skills that a model finds, and by each worker's competence and cost.

The method is that of Wang et al., "SkillOrchestra: Learning to Route Agents via Skill Transfer"
(arXiv 2602.19672), and of the authors' code for routing among models. A model reads some questions,
each with the workers that answered it correctly, and names the skills that make the difference, in
categories. Each question is labelled with the skills that it needs, and every worker's successes
and attempts are counted under these skills. For a new question the orchestrating model says which
skills the question needs and how much of each. A worker's score is the weighted mean of its
competences in these skills, less `price` for each dollar that its call costs under them. Ties are
broken by competence in the skills' categories, then over all questions, then by cost. Whether
skills, only their categories or neither are used is chosen on held-out questions. If the model
names no known skill, skills are found by their indicator words.

Deviations
- Skills are not merged or split afterwards by asking the model again.
- Questions are labelled like new questions: the model is not shown which workers were right, so
  that the validation holds for new questions.
- Competence is the mean of Beta(1 + right, 1 + wrong), not the proportion correct (0 if unseen).
- The last tie is broken by cost and not at random.
- One round with one worker: the turns of search and answer of the agentic part are left out.
- The prompts are our own and name no benchmark.

Axes: k skills, m workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Client,
    Decision,
    Draft,
    MalformedPlan,
    Plan,
    PlanningContext,
    Question,
    Request,
    Run,
    Sampling,
    Step,
    WorkerId,
    Workflow,
    user_message,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.engine.solver import SolverContext, run_conductor
from batuta.errors import ClientError, LimitReachedError
from batuta.lab.baselines.routing.arrays import Floats
from batuta.usage import ZERO_COST, ZERO_USAGE

NAME = "skillorchestra"
DEMAND_TOKENS = 400
"""Maximum number of tokens of the reply that names the skills."""
_SHOWN_CHARACTERS = 2000
_EQUAL = 1e-6

DEMAND = """\
A question is to be given to one of several models. Say which of these skills it needs and how \
much of each, in per cent. Do not answer the question.

Skills:
{skills}

Question:
{question}

Write one JSON object and nothing else, with at most 4 of the skills by their ids:
{{"required_skills": [{{"skill_id": "{example}", "percentage": 100}}]}}"""


@dataclass(frozen=True, slots=True)
class RoutingSkill:
    """A skill that questions need."""

    id: str
    """The skill's category and name, with a dot between them."""
    description: str = ""
    indicators: tuple[str, ...] = ()
    """Words or phrases of questions that need the skill."""

    @property
    def category(self) -> str:
        """The part of the id before the last dot; the whole id if there is no dot."""
        return self.id.rpartition(".")[0] or self.id


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Handbook:
    """The skills, and each worker's results and cost under each skill."""

    workers: tuple[WorkerId, ...]
    skills: tuple[RoutingSkill, ...]
    right_km: Floats
    """The sum of each worker's scores on the questions of each skill."""
    asked_km: Floats
    """The number of these questions with a known score, for each worker."""
    usd_km: Floats
    """Mean dollars of a call of each worker on the questions of each skill; NaN if unknown."""
    right_m: Floats
    """The sum of each worker's scores on all questions."""
    asked_m: Floats
    """The number of questions with a known score, for each worker."""
    depth: int = 2
    """2: workers are chosen by skills; 1: by the skills' categories; 0: over all questions."""

    def choose(self, weights: Mapping[str, float], pool: Sequence[WorkerId], price: float) -> int:
        """Return the index in `workers` of the worker for a question that needs these skills.

        `weights` are the shares of the skills, by id, which sum to 1; empty if unknown. `pool` has
        at least one of the handbook's workers. `price` is subtracted from a worker's score for each
        dollar of its call; an unknown cost is subtracted as 0 and loses the last tie.
        """
        overall_m = (self.right_m + 1) / (self.asked_m + 2)
        skill_m = self._mean_competences(weights) if self.depth > 1 and weights else overall_m
        category_m = self._category_competences(weights) if self.depth and weights else overall_m
        usd_m = self._cost(weights)
        score_m = (skill_m if self.depth > 1 else category_m) - price * np.nan_to_num(usd_m)
        left = [m for m, worker in enumerate(self.workers) if worker in pool]
        for value_m in (score_m, category_m, overall_m):
            best = max(float(value_m[m]) for m in left)
            left = [m for m in left if float(value_m[m]) >= best - _EQUAL]
        return min(left, key=lambda m: float(np.nan_to_num(usd_m[m], nan=np.inf)))

    def _mean_competences(self, weights: Mapping[str, float]) -> Floats:
        rate_km = (self.right_km + 1) / (self.asked_km + 2)
        return self._shares(weights) @ rate_km

    def _category_competences(self, weights: Mapping[str, float]) -> Floats:
        names = [skill.category for skill in self.skills]
        same_kk = np.array([[one == other for other in names] for one in names], float)
        rate_km = (same_kk @ self.right_km + 1) / (same_kk @ self.asked_km + 2)
        return self._shares(weights) @ rate_km

    def _cost(self, weights: Mapping[str, float]) -> Floats:
        """Return dollars per call, (m,), under these skills, else under all skills, else NaN."""
        known_km = ~np.isnan(self.usd_km)
        share_k = self._shares(weights) if weights else np.ones(len(self.skills))
        total_m = share_k @ known_km
        usd_km = np.where(known_km, self.usd_km, 0)
        spent_m = share_k @ usd_km
        mean_m = usd_km.sum(axis=0) / np.maximum(known_km.sum(axis=0), 1)
        overall_m = np.where(known_km.any(axis=0), mean_m, np.nan)
        return np.where(total_m > 0, spent_m / np.where(total_m > 0, total_m, 1), overall_m)

    def _shares(self, weights: Mapping[str, float]) -> Floats:
        return np.array([weights.get(skill.id, 0.0) for skill in self.skills])


def demand_prompt(skills: Sequence[RoutingSkill], question: str) -> str:
    """Return the prompt that asks which skills a question needs; a long question is cut."""
    listed = "\n".join(f"- {skill.id}: {skill.description}" for skill in skills)
    return DEMAND.format(skills=listed, question=question[:_SHOWN_CHARACTERS], example=skills[0].id)


def read_demand(reply: str, skills: Sequence[RoutingSkill], question: str) -> dict[str, float]:
    """Return the shares of the known skills that the reply names, by id; they sum to 1.

    If the reply names none, the skills are those whose indicators occur in the question; the result
    is empty if there are none.
    """
    by_name = {
        _plain_name(name): skill.id
        for skill in skills
        for name in (skill.id, skill.id.rpartition(".")[2])
    }
    found: dict[str, float] = {}
    for row in read_rows(reply, "required_skills"):
        known = by_name.get(_plain_name(str(row.get("skill_id", ""))))
        weight = _read_number(row.get("percentage", 1))
        if known and weight > 0:
            found[known] = found.get(known, 0.0) + weight
    return _to_shares(found or _by_indicators(skills, question))


def read_rows(reply: str, field: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in the list `field` of the first JSON object in the reply that has it."""
    decoder = json.JSONDecoder()
    for start, character in enumerate(reply):
        if character != "{":
            continue
        try:
            read, _ = decoder.raw_decode(reply, start)
        except (ValueError, RecursionError):
            continue
        rows: object = cast("dict[str, object]", read).get(field)
        if isinstance(rows, list):
            listed = cast("list[object]", rows)
            yield from (cast("dict[str, Any]", row) for row in listed if isinstance(row, dict))
            return


def _plain_name(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _read_number(value: object) -> float:
    try:
        found = float(str(value).rstrip("% "))
    except ValueError:
        return 0.0
    return found if np.isfinite(found) else 0.0


def _by_indicators(skills: Sequence[RoutingSkill], question: str) -> dict[str, float]:
    text = question.lower()
    hits = {
        skill.id: sum(float(word.lower() in text) for word in skill.indicators if word.strip())
        for skill in skills
    }
    return {id_: count for id_, count in hits.items() if count}


def _to_shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {id_: weight / total for id_, weight in weights.items()}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SkillOrchestra:
    """Asks a model which skills the question needs, and gives the question to one worker."""

    handbook: Handbook
    orchestrator: WorkerId
    """The worker that names the needed skills; its calls count as a conductor's. If it is not in a
    question's pool, the pool's best model is asked; if there is no model, none is."""
    price: float = 0.0
    """Subtracted from a worker's score for each dollar of a call; with 0, cost only breaks ties."""
    name: str = NAME
    calls: int = 1
    """Maximum number of steps; one is planned."""

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Return the chosen worker's run, which includes the orchestrator's call if it is asked."""
        models = (worker.id for worker in context.pool.ranked() if worker.is_model)
        asked = (one for one in (self.orchestrator, *models) if one in context.pool)
        conductor = _SkillConductor(self, next(asked, None), context.clients)
        return await run_conductor(
            question, conductor, context, seed, max_steps=self.calls, asks_anew=True
        )


@dataclass(frozen=True, slots=True, eq=False)
class _SkillConductor:
    """The conductor of one run, which can call the orchestrating model."""

    method: SkillOrchestra
    orchestrator: WorkerId | None
    """None if the pool has no model that can name skills."""
    clients: Mapping[WorkerId, Client]

    @property
    def name(self) -> str:
        return self.method.name

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Ask for the skills and plan one step; accept the answer in a later round.

        The plan is malformed if the pool has none of the handbook's workers or the call fails.
        """
        if context.previous:
            return AcceptedAnswer()
        handbook, text = self.method.handbook, context.question.text
        present = [worker for worker in handbook.workers if worker in context.pool]
        if not present:
            reason = f"{self.name} was fitted on none of the pool's workers"
            return MalformedPlan(draft=Draft(), reason=reason)
        draft = Draft()
        if self.orchestrator is not None:
            draft = await self._ask(self.orchestrator, context, listener)
        if isinstance(draft, MalformedPlan):
            return draft
        weights = read_demand(draft.text, handbook.skills, text)
        chosen = handbook.workers[handbook.choose(weights, present, self.method.price)]
        return Plan(Workflow((Step(subtask="", worker=chosen),)), draft)

    async def _ask(
        self, worker: WorkerId, context: PlanningContext, listener: CallListener
    ) -> Draft | MalformedPlan:
        """Ask the worker for the skills; return a malformed plan if the call fails."""
        prompt = demand_prompt(self.method.handbook.skills, context.question.text)
        request = Request(
            messages=(user_message(prompt),),
            sampling=Sampling(
                temperature=0,
                max_tokens=DEMAND_TOKENS,
                seed=(context.seed * 1_000_003 + context.sample) % 2**31,
            ),
        )
        try:
            request = await listener.before_call(request, context.pool[worker])
            reply = await self.clients[worker].complete(request, listener)
        except LimitReachedError as error:
            return MalformedPlan(draft=Draft(request=request), reason=str(error), outage=True)
        except ClientError as error:
            lost = Draft(
                usage=error.usage or ZERO_USAGE, cost=error.cost or ZERO_COST, request=request
            )
            reason = f"the model that names the needed skills gave no reply: {error}"
            return MalformedPlan(draft=lost, reason=reason, outage=True, again=error.retryable)
        return Draft(text=reply.text, usage=reply.usage, cost=reply.cost, request=request)
