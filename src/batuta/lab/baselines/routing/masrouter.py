"""MASRouter: four successive choices form a small multi-agent system for a question.

The method is that of Yue et al., "MasRouter: Learning to Route LLMs for Multi-Agent Systems" (arXiv
2502.11133), sections 4.1 to 4.4. The question has a frozen embedding. Inner products of vectors of
length 1, in 64 dimensions, give the logits of four choices:

1. The class of the task, trained by cross-entropy.
2. A collaboration mode, from a variational latent, by a softmax at temperature 0.8. The same latent
   gives the number of agents, round(6 sigmoid(f)), in 1 to 6.
3. A role for each agent, one after another, at temperature 0.5. Each choice depends on the roles
   chosen before.
4. A model for each agent, by one multinomial draw, at temperature 1.

The loss is the cross-entropy of the class + mean(-log p * utility) + 0.001 * the variational loss.
The utility is 1 if the question was solved. Adam runs 5 epochs at 0.01, in batches of 16.

Deviations
- The embedding is `HashedNgrams`, not a sentence encoder of 384 dimensions; classes, modes, roles
  and models have trained vectors, where the paper embeds their descriptions.
- The classes are the history's families.
- The paper's rounding has no gradient, so its map would never be trained. Here the number of agents
  is a choice like the others, 1 + binomial(5, sigmoid(f)), and its probability is in the loss. The
  most probable number is floor(6 sigmoid(f)) + 1.
- Training executes nothing but reads a history, which has the utility of single agents. The utility
  of several agents is SIMULATED: 1 if more than half of their models solved the question alone, and
  0.5 if exactly half did. A history really covers only `CollaborationMode.IO`.
- Over a pool of recorded answers only `CollaborationMode.IO` with one agent is run, because nothing
  else was recorded. Over other pools the workflows are real, and truncated to the allowed steps.
- The most probable option is chosen. With `sample_choices` options are drawn, as in the paper; at
  these temperatures the probabilities differ little.

Axes: b or q questions, d dimensions of the embedding, t classes, a agents, m models, n options.
"""

# torch leaves most types unknown:
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from math import comb

import torch
from torch import nn
from torch.nn import functional

from batuta.conductors.features import Features
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Draft,
    MalformedPlan,
    Plan,
    PlanningContext,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.baselines.routing.router import fit_embedding
from batuta.lab.learners.history import History


class CollaborationMode(StrEnum):
    """The way in which agents work together."""

    IO = "io"
    """One agent answers the bare question."""
    COT = "cot"
    """One agent answers step by step."""
    CHAIN = "chain"
    """Each agent reads the answer of the agent before it."""
    FULL = "full"
    """Each agent reads the answers of all agents before it."""
    DEBATE = "debate"
    """All agents answer, then all answer again after reading these answers; the last agent also
    reads the other second answers."""
    REFLECTION = "reflection"
    """The first agent answers, and revises its answer after the criticism of each other agent, or
    after its own if there is no other."""


MODES = tuple(CollaborationMode)
ROLES = (
    "Solve the question as a mathematician: write down what is given, then calculate.",
    "Solve the question as a programmer: as an algorithm whose every step is carried out.",
    "Solve the question as an expert of its field: recall the facts that decide it.",
    "Solve the question by a plan: write the plan first, then carry it out.",
    "Solve the question without the mistake that is easily made here: name it first.",
    "Solve the question as a critic: trust no step that you have not checked.",
)
SOLVE_STEPWISE = "Solve the question step by step."
RECONSIDER = "Compare the solutions, say which is right and why, and give your final answer."
CRITICIZE = "Criticise the solution: say which step is wrong and why, or that it is right."
REVISE = "Revise the solution by the criticism and give the final answer."
_PAIR = 2


@dataclass(frozen=True, slots=True)
class RoleAgent:
    """A worker in a role."""

    role: int
    """The index of the role in `ROLES`."""
    worker: WorkerId


def build_mode_workflow(
    mode: CollaborationMode, agents: Sequence[RoleAgent], max_steps: int
) -> Workflow:
    """Return the workflow of these agents in that mode, with at most `max_steps` steps.

    There must be at least one agent. A debate without room for two agents becomes a chain.
    """
    steps = _STEP_BUILDERS[mode](agents, max_steps)
    return Workflow(tuple(steps or [Step(subtask="", worker=agents[0].worker)]))


def _cot_steps(agents: Sequence[RoleAgent], _: int) -> list[Step]:
    return [Step(subtask=SOLVE_STEPWISE, worker=agents[0].worker)]


def _chain_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    return [
        Step(subtask=ROLES[agent.role], worker=agent.worker, access=(index - 1,) if index else ())
        for index, agent in enumerate(agents[:max_steps])
    ]


def _full_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    return [
        Step(subtask=ROLES[agent.role], worker=agent.worker, access=tuple(range(index)))
        for index, agent in enumerate(agents[:max_steps])
    ]


def _debate_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    size = min(len(agents), max_steps // _PAIR)
    if size < _PAIR:
        return _chain_steps(agents, max_steps)
    opening = [Step(subtask=ROLES[agent.role], worker=agent.worker) for agent in agents[:size]]
    openings = tuple(range(size))
    closing = [
        Step(subtask=RECONSIDER, worker=agent.worker, access=openings)
        for agent in agents[: size - 1]
    ]
    last = Step(
        subtask=RECONSIDER, worker=agents[size - 1].worker, access=tuple(range(2 * size - 1))
    )
    return [*opening, *closing, last]


def _reflection_steps(agents: Sequence[RoleAgent], max_steps: int) -> list[Step]:
    first, *others = agents
    critics = (others or [first])[: (max_steps - 1) // _PAIR]
    steps = [Step(subtask=ROLES[first.role], worker=first.worker)]
    for critic in critics:
        solution = len(steps) - 1
        steps.append(Step(subtask=CRITICIZE, worker=critic.worker, access=(solution,)))
        steps.append(Step(subtask=REVISE, worker=first.worker, access=(solution, solution + 1)))
    return steps


_STEP_BUILDERS: dict[CollaborationMode, Callable[[Sequence[RoleAgent], int], list[Step]]] = {
    CollaborationMode.IO: lambda _, __: [],
    CollaborationMode.COT: _cot_steps,
    CollaborationMode.CHAIN: _chain_steps,
    CollaborationMode.FULL: _full_steps,
    CollaborationMode.DEBATE: _debate_steps,
    CollaborationMode.REFLECTION: _reflection_steps,
}


WIDTH = 64
MAX_AGENTS = 6
MODE_TEMPERATURE, ROLE_TEMPERATURE = 0.8, 0.5
VARIATIONAL_WEIGHT = 0.001
LEARNING_RATE = 0.01
BATCH = 16
EPOCHS = 5
_MODES_OF_ONE = torch.tensor([m in {CollaborationMode.IO, CollaborationMode.COT} for m in MODES])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SystemChoices:
    """The choices for each question of a batch, and the terms of the loss."""

    classes_bt: torch.Tensor
    """The logits of the classes."""
    variational: torch.Tensor
    """The variational loss, a mean over the batch."""
    modes_b: torch.Tensor
    """Indices into `MODES`."""
    agents_b: torch.Tensor
    """The number of agents; 1 in the modes of one agent."""
    roles_ba: torch.Tensor
    """Indices into `ROLES`; only the first `agents_b` entries of a row count."""
    models_ba: torch.Tensor
    """Indices of models; only the first `agents_b` entries of a row count."""
    log_p_b: torch.Tensor
    """The log-probability of all choices for a question, except its class."""


class SystemModel(nn.Module):
    """The network: linear maps of the question's embedding, and a vector for each option."""

    def __init__(
        self, dimensions: int, classes: int, workers: int, random: torch.Generator
    ) -> None:
        super().__init__()

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=random) / shape[0] ** 0.5)

        self.class_map = normal(dimensions, WIDTH)
        self.mean_map = normal(dimensions, WIDTH)
        self.spread_map = normal(dimensions, WIDTH)
        self.role_map = normal(dimensions, WIDTH)
        self.model_map = normal(dimensions, WIDTH)
        self.decoder = normal(WIDTH, dimensions)
        self.number = normal(WIDTH, 1)
        self.classes = normal(classes, WIDTH)
        self.modes = normal(len(MODES), WIDTH)
        self.roles = normal(len(ROLES), WIDTH)
        self.models = normal(workers, WIDTH)

    def forward(
        self,
        points_bd: torch.Tensor,
        modes: Sequence[CollaborationMode],
        present_m: torch.Tensor,
        random: torch.Generator | None,
    ) -> SystemChoices:
        """Make the four choices for each question.

        Args:
            points_bd: the questions' embeddings.
            modes: the modes to choose from.
            present_m: the mask of models to choose from.
            random: draws the choices and the latent; None: the most probable options and the
                latent's mean are taken.
        """
        classes, mode_vectors, roles = map(_normalize_rows, (self.classes, self.modes, self.roles))
        classes_bt = _normalize_rows(points_bd @ self.class_map) @ classes.T
        latent, variational = self._encode_latent(points_bd, random)
        about = latent + classes[classes_bt.argmax(dim=1)]
        allowed = torch.tensor([mode in modes for mode in MODES])
        mode_log_p = _log_probabilities(about, mode_vectors, MODE_TEMPERATURE, allowed)
        modes_b, log_p_b = _choose_option(mode_log_p, random)
        further_b, number_log_p = _choose_option(
            _number_log_probabilities(latent @ self.number), random
        )
        alone_b = _MODES_OF_ONE[modes_b]
        agents_b = further_b.masked_fill(alone_b, 0) + 1
        log_p_b = log_p_b + number_log_p * ~alone_b
        context, chosen = points_bd @ self.role_map + mode_vectors[modes_b], []
        for position in range(int(agents_b.max())):
            role_b, role_log_p = _choose_option(
                _log_probabilities(context, roles, ROLE_TEMPERATURE), random
            )
            takes_part_b = position < agents_b
            context = context + roles[role_b] * takes_part_b[:, None]
            log_p_b = log_p_b + role_log_p * takes_part_b
            chosen.append(role_b)
        wanted = points_bd @ self.model_map + context
        model_log_p = _log_probabilities(wanted, _normalize_rows(self.models), 1.0, present_m)
        drawn = [_choose_option(model_log_p, random) for _ in chosen]
        for position, (_, drawn_log_p) in enumerate(drawn):
            log_p_b = log_p_b + drawn_log_p * (position < agents_b)
        return SystemChoices(
            classes_bt=classes_bt,
            variational=variational,
            modes_b=modes_b,
            agents_b=agents_b,
            roles_ba=torch.stack(chosen, 1),
            models_ba=torch.stack([model_b for model_b, _ in drawn], 1),
            log_p_b=log_p_b,
        )

    def _encode_latent(
        self, points_bd: torch.Tensor, random: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the latent, (b, 64), and the variational loss, a mean over the batch.

        The loss is the reconstruction error plus the divergence from a standard normal.
        """
        mean, log_variance = points_bd @ self.mean_map, points_bd @ self.spread_map
        latent = mean
        if random is not None:
            noise = torch.randn(mean.shape, generator=random)
            latent = mean + (log_variance / 2).exp() * noise
        error = ((latent @ self.decoder - points_bd) ** 2).sum()
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum() / 2
        return latent, (error + divergence) / len(points_bd)


def _normalize_rows(rows: torch.Tensor) -> torch.Tensor:
    return functional.normalize(rows, dim=-1)


def _log_probabilities(
    context: torch.Tensor,
    vectors: torch.Tensor,
    temperature: float,
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the log-probability of every option, (b, n)."""
    logits = _normalize_rows(context) @ vectors.T / temperature
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return functional.log_softmax(logits, dim=1)


def _number_log_probabilities(logits_b1: torch.Tensor) -> torch.Tensor:
    """Return the binomial log-probability of 0 to 5 further agents, (b, 6)."""
    further = torch.arange(MAX_AGENTS)
    ways = torch.tensor([comb(MAX_AGENTS - 1, n) for n in range(MAX_AGENTS)]).log()
    more, fewer = functional.logsigmoid(logits_b1), functional.logsigmoid(-logits_b1)
    return ways + further * more + further.flip(0) * fewer


def _choose_option(
    log_p_bn: torch.Tensor, random: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the drawn or most probable options and their log-probabilities, both (b,)."""
    if random is None:
        chosen = log_p_bn.argmax(dim=1, keepdim=True)
    else:
        chosen = torch.multinomial(log_p_bn.detach().exp(), 1, generator=random)
    return chosen[:, 0], log_p_bn.gather(1, chosen)[:, 0]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MasRouter:
    """The conductor that plans the workflow of the chosen system."""

    name: str
    workers: tuple[WorkerId, ...]
    """The models, in the order of the history that the network was fitted to."""
    model: SystemModel
    embed: Features
    modes: tuple[CollaborationMode, ...] = MODES
    """The modes to choose from, except in a pool of recorded answers."""
    sample_choices: bool = False
    """True if choices are drawn by the run's seed; False takes the most probable options."""

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the chosen mode, agents and models; accept the answer in a later round.

        The plan is malformed if the pool has none of the workers.
        """
        if context.previous:
            return AcceptedAnswer()
        present_m = torch.tensor([worker in context.pool for worker in self.workers])
        if not present_m.any():
            return MalformedPlan(
                draft=Draft(), reason=f"{self.name} was fitted on none of the pool's workers"
            )
        recorded = all("recorded" in worker.tags for worker in context.pool)
        modes = (CollaborationMode.IO,) if recorded else self.modes
        random = None
        if self.sample_choices:
            seed_text = f"{context.seed} {context.question.text}".encode()
            seed = int.from_bytes(blake2b(seed_text, digest_size=8).digest(), "big", signed=True)
            random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            points_1d = torch.from_numpy(self.embed([context.question.text]))
            found = self.model(points_1d, modes, present_m, random)
        agents = [
            RoleAgent(int(role), self.workers[int(model)])
            for role, model in zip(found.roles_ba[0], found.models_ba[0], strict=True)
        ]
        mode = MODES[int(found.modes_b[0])]
        return Plan(build_mode_workflow(mode, agents, context.max_steps))


def fit_masrouter(
    history: History,
    *,
    seed: int = 0,
    modes: Sequence[CollaborationMode] = MODES,
    sample_choices: bool = False,
    epochs: int = EPOCHS,
    features: Features | None = None,
) -> MasRouter:
    """Fit the conductor with torch; `MasRouter` explains `modes` and `sample_choices`.

    Raises:
        ConfigError: the history has no questions.
    """
    embed, points_qd = fit_embedding(history, features)
    names = sorted(set(history.families))
    classes_q = torch.tensor([names.index(family) for family in history.families])
    points, scores_qm = torch.from_numpy(points_qd), torch.from_numpy(history.scores_qm)
    random = torch.Generator().manual_seed(seed)
    model = SystemModel(points.shape[1], len(names), len(history.workers), random)
    adam = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    everyone_m = torch.ones(len(history.workers), dtype=torch.bool)
    for _ in range(epochs):
        for batch in torch.randperm(len(points), generator=random).split(BATCH):
            found = model(points[batch], modes, everyone_m, random)
            adam.zero_grad()
            batch_loss(found, classes_q[batch], system_utility(scores_qm[batch], found)).backward()
            adam.step()
    return MasRouter(
        name="masrouter",
        workers=history.workers,
        model=model,
        embed=embed,
        modes=tuple(modes),
        sample_choices=sample_choices,
    )


def batch_loss(
    found: SystemChoices, classes_b: torch.Tensor, utility_b: torch.Tensor
) -> torch.Tensor:
    """Return the loss: the sum of the class's, the choices' and the variational term."""
    class_loss = functional.cross_entropy(found.classes_bt, classes_b)
    choice_loss = -(found.log_p_b * utility_b).mean()
    return class_loss + choice_loss + VARIATIONAL_WEIGHT * found.variational


def system_utility(scores_bm: torch.Tensor, found: SystemChoices) -> torch.Tensor:
    """Return the utility of each system, (b,); for several agents the utility is simulated.

    Args:
        scores_bm: the score of each single model on the questions; NaN if unknown.
        found: the chosen systems.
    """
    depth = found.models_ba.shape[1]
    scores_ba = scores_bm.gather(1, found.models_ba)
    known_ba = (torch.arange(depth) < found.agents_b[:, None]) & ~scores_ba.isnan()
    total_b = scores_ba.masked_fill(~known_ba, 0).sum(dim=1)
    mean_b = total_b / known_ba.sum(dim=1).clamp(min=1)
    majority_b = torch.heaviside(mean_b - 0.5, torch.tensor(0.5))
    return torch.where(found.agents_b == 1, mean_b, majority_b)
