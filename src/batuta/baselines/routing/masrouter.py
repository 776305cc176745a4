"""MASRouter: a cascade of four choices writes a small multi-agent system for a question.

Yue et al., "MasRouter: Learning to Route LLMs for Multi-Agent Systems" (arXiv 2502.11133), sections
4.1 to 4.4. From a frozen embedding of the question, by inner products of 64-dimensional vectors of
length 1: (1) the class of the task, by cross-entropy; (2) a collaboration mode, from a variational
latent, softmax / 0.8, and from the same latent the number of agents, round(6 sigmoid(f)) in 1 to 6;
(3) a role for each agent, one after another, each depending on those before it, softmax / 0.5;
(4) a model for each agent, by one multinomial draw, softmax / 1. Loss: cross-entropy of the
class + mean(-log p * utility) + 0.001 * the variational loss; utility = solved - rate * dollars;
Adam 0.01, batches of 16, 5 epochs.

Deviations
- The embedding is `HashedNgrams`, not a sentence encoder of 384 dimensions; classes, modes, roles
  and models have trained vectors, where the paper embeds their descriptions.
- The classes are the history's families.
- No gradient passes the paper's rounding, so its map would stay as it was drawn. Here the number is
  a choice like the others, 1 + binomial(5, sigmoid(f)), whose probability is in the loss; the most
  probable number is floor(6 sigmoid(f)) + 1.
- Training runs nothing, it reads a history. There one agent's utility is what was recorded. That
  of several is SIMULATED: solved if more than half of their models have solved the question alone,
  half of it if exactly half have. `Mode.IO` is all that a history can really know.
- Over a pool of recorded answers only `Mode.IO` with one agent is run, since nothing else was
  recorded; over other pools the workflows are real, and cut to the steps allowed.
- Each choice is the most probable one. `drawn` draws from the probabilities as the paper does;
  those of cosines at these temperatures are not far apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import comb

import numpy as np

from batuta.baselines.routing.arrays import Floats, Indices, Masks
from batuta.baselines.routing.autodiff import (
    Adam,
    Variable,
    log_sigmoid,
    log_softmax,
    normalize_rows,
)
from batuta.baselines.routing.collaboration_modes import (
    MODES,
    ROLES,
    CollaborationMode,
    RoleAgent,
    build_mode_workflow,
)
from batuta.baselines.routing.router import compute_utilities, fit_embedding
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Draft,
    MalformedPlan,
    Plan,
    PlanningContext,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.solvers.features import Features
from batuta.solvers.history import History

WIDTH = 64
MAX_AGENTS = 6
"""At most."""
MODE_TEMPERATURE, ROLE_TEMPERATURE = 0.8, 0.5
VARIATIONAL_WEIGHT = 0.001
LEARNING_RATE = 0.01
BATCH = 16
EPOCHS = 5

ModelWeights = Mapping[str, Variable]
ChoiceRule = Callable[[Floats], Indices]
"""From logits (b, n) to one place for each row (b,)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SystemChoices:
    """What was chosen for each question of a batch, and what the losses need."""

    classes_bt: Variable
    """Logits."""
    variational: Variable
    modes_b: Indices
    agents_b: Indices
    """How many; 1 in the modes of one agent."""
    roles_ba: Indices
    models_ba: Indices
    """Only the first `agents_b` of both count."""
    log_p_b: Variable


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MasRouter:
    """The conductor."""

    name: str
    workers: tuple[WorkerId, ...]
    model: ModelWeights
    embed: Features
    modes: tuple[CollaborationMode, ...] = MODES
    sample_choices: bool = False

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The mode, the agents and their models; in a later round, the answer stands."""
        if context.previous:
            return AcceptedAnswer()
        there_m = np.asarray([worker in context.pool for worker in self.workers])
        if not there_m.any():
            return MalformedPlan(
                draft=Draft(), reason=f"{self.name} was fitted on none of the pool's workers"
            )
        recorded = all("recorded" in worker.tags for worker in context.pool)
        modes = (CollaborationMode.IO,) if recorded else self.modes
        said = f"{context.seed} {context.question.text}".encode()
        rng = np.random.default_rng(int.from_bytes(blake2b(said, digest_size=8).digest(), "big"))
        choose = _gumbel_choice(rng) if self.sample_choices else _choose_greatest
        points_1d = self.embed([context.question.text])
        draw = choose_systems(self.model, points_1d, choose=choose, modes=modes, there_m=there_m)
        mode = MODES[int(draw.modes_b[0])]
        agents = [
            RoleAgent(int(draw.roles_ba[0, a]), self.workers[int(draw.models_ba[0, a])])
            for a in range(int(draw.agents_b[0]))
        ]
        return Plan(build_mode_workflow(mode, agents, context.max_steps))


def fit_masrouter(
    history: History,
    *,
    seed: int = 0,
    dollar_rate: float = 0.0,
    modes: Sequence[CollaborationMode] = MODES,
    sample_choices: bool = False,
    epochs: int = EPOCHS,
    features: Features | None = None,
) -> MasRouter:
    """The conductor.

    Args:
        history: what to learn from.
        seed: of the first weights, the batches and what is drawn in training.
        dollar_rate: what a dollar takes from a utility.
        modes: among which to choose.
        sample_choices: each choice is drawn, not the most probable one.
        epochs: over the questions.
        features: of the questions, not fitted yet.

    Raises:
        ConfigError: the history has no questions, or a rate is given and dollars are unknown.
    """
    values_qm = compute_utilities(history, dollar_rate)
    embed, points_qd = fit_embedding(history, features)
    names = sorted(set(history.families))
    classes_q = np.asarray([names.index(family) for family in history.families])
    rng = np.random.default_rng(seed)
    model = first_weights(points_qd.shape[1], len(names), len(history.workers), rng)
    adam = Adam(model, LEARNING_RATE)
    everyone_m = np.ones(len(history.workers), bool)
    outcome = _SystemOutcome(history.scores_qm.astype(np.float64), values_qm)
    for _ in range(epochs):
        order = rng.permutation(len(points_qd))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            draw = choose_systems(
                model,
                points_qd[batch],
                choose=_gumbel_choice(rng),
                modes=modes,
                there_m=everyone_m,
                noise=rng,
            )
            adam.step(batch_loss(draw, classes_q[batch], outcome.utility(batch, draw)))
    return MasRouter(
        name="masrouter",
        workers=history.workers,
        model=model,
        embed=embed,
        modes=tuple(modes),
        sample_choices=sample_choices,
    )


def first_weights(
    dimensions: int, classes: int, workers: int, rng: np.random.Generator
) -> dict[str, Variable]:
    """Maps of the question for each stage, and a vector for each thing that can be chosen."""
    maps = ("class map", "mean map", "spread map", "role map", "model map")
    shapes = dict.fromkeys(maps, (dimensions, WIDTH)) | {
        "decoder": (WIDTH, dimensions),
        "number": (WIDTH, 1),
        "classes": (classes, WIDTH),
        "modes": (len(MODES), WIDTH),
        "roles": (len(ROLES), WIDTH),
        "models": (workers, WIDTH),
    }
    return {
        name: Variable(rng.standard_normal(shape, np.float32) / shape[0] ** 0.5)
        for name, shape in shapes.items()
    }


def choose_systems(
    model: ModelWeights,
    points_bd: Floats,
    choose: ChoiceRule,
    modes: Sequence[CollaborationMode],
    *,
    there_m: Masks,
    noise: np.random.Generator | None = None,
) -> SystemChoices:
    """The four choices for each question.

    Args:
        model: the weights.
        points_bd: the questions' embeddings.
        choose: how a choice is made.
        modes: which may be chosen.
        there_m: which models may be chosen.
        noise: of the latent; None: its mean is taken.
    """
    classes, mode_vectors = normalize_rows(model["classes"]), normalize_rows(model["modes"])
    classes_bt = normalize_rows(model["class map"].premultiply(points_bd)) @ classes.transpose
    latent, variational = _encode_latent(model, points_bd, noise)
    about = latent + classes[classes_bt.value.argmax(axis=1)]
    allowed = np.asarray([mode in modes for mode in MODES])
    modes_b, log_p = _choose_option(
        about, mode_vectors, temperature=MODE_TEMPERATURE, choose=choose, allowed=allowed
    )
    agents_b, log_q = _choose_number(latent @ model["number"], modes_b, choose)
    log_p += log_q
    mode = mode_vectors[modes_b]
    count = int(agents_b.max())
    roles: list[Indices] = []
    models: list[Indices] = []
    context = model["role map"].premultiply(points_bd) + mode
    roles_done = normalize_rows(model["roles"])
    for place in range(count):
        role_b, log_q = _choose_option(context, roles_done, ROLE_TEMPERATURE, choose)
        roles.append(role_b)
        context += roles_done[role_b].multiply((place < agents_b)[:, None])
        log_p += log_q.multiply(place < agents_b)
    wanted = model["model map"].premultiply(points_bd) + context
    model_log_p = _log_probabilities(wanted, normalize_rows(model["models"]), 1.0, there_m)
    for place in range(count):
        model_b = choose(model_log_p.value)
        models.append(model_b)
        log_p += _select_log_probability(model_log_p, model_b).multiply(place < agents_b)
    return SystemChoices(
        classes_bt=classes_bt,
        variational=variational,
        modes_b=modes_b,
        agents_b=agents_b,
        roles_ba=np.stack(roles, 1),
        models_ba=np.stack(models, 1),
        log_p_b=log_p,
    )


def _choose_number(
    logits_b1: Variable, modes_b: Indices, choose: ChoiceRule
) -> tuple[Indices, Variable]:
    """How many agents, and that number's log-probability; in modes of one agent it is certain."""
    further_n = np.arange(MAX_AGENTS)
    weights_n = np.log([comb(MAX_AGENTS - 1, int(n)) for n in further_n])
    more_b1, fewer_b1 = log_sigmoid(logits_b1), log_sigmoid(logits_b1.multiply(-1))
    log_p_bn = (more_b1.multiply(further_n) + fewer_b1.multiply(further_n[::-1])).add(weights_n)
    alone_b = np.isin(modes_b, _MODES_OF_ONE)
    further_b = np.where(alone_b, 0, choose(log_p_bn.value))
    return further_b + 1, _select_log_probability(log_p_bn, further_b).multiply(~alone_b)


_MODES_OF_ONE = [MODES.index(CollaborationMode.IO), MODES.index(CollaborationMode.COT)]


def batch_loss(draw: SystemChoices, classes_b: Indices, utility_b: Floats) -> Variable:
    """The mean over the batch of the three terms."""
    rows_b = np.arange(len(classes_b))
    known = log_softmax(draw.classes_bt)[rows_b, classes_b].sum()
    earned = draw.log_p_b.multiply(utility_b).sum()
    return (known + earned).multiply(-1 / len(rows_b)) + draw.variational.multiply(
        VARIATIONAL_WEIGHT
    )


def _encode_latent(
    model: ModelWeights, points_bd: Floats, noise: np.random.Generator | None
) -> tuple[Variable, Variable]:
    """The latent (b, 64), and the variational loss, a mean over the batch.

    The loss is how badly the latent is undone, and how far it is from a standard normal.
    """
    mean = model["mean map"].premultiply(points_bd)
    log_variance = model["spread map"].premultiply(points_bd)
    shape = mean.value.shape
    lots = np.zeros(shape) if noise is None else noise.standard_normal(shape, np.float32)
    latent = mean + log_variance.multiply(0.5).exp().multiply(lots)
    missed = (latent @ model["decoder"]).add(-points_bd)
    divergence = (mean * mean + log_variance.exp() - log_variance.add(1.0)).sum().multiply(0.5)
    return latent, ((missed * missed).sum() + divergence).multiply(1 / shape[0])


def _choose_option(
    context: Variable,
    vectors: Variable,
    temperature: float,
    choose: ChoiceRule,
    *,
    allowed: Masks | None = None,
) -> tuple[Indices, Variable]:
    """The chosen places and the logarithms of their probabilities: (b,) each."""
    log_p = _log_probabilities(context, vectors, temperature, allowed)
    chosen_b = choose(log_p.value)
    return chosen_b, _select_log_probability(log_p, chosen_b)


def _log_probabilities(
    context: Variable, vectors: Variable, temperature: float, allowed: Masks | None = None
) -> Variable:
    """The logarithm of the probability of everything that can be chosen: (b, n)."""
    logits = (normalize_rows(context) @ vectors.transpose).multiply(1 / temperature)
    if allowed is not None:
        logits = logits.add(np.where(allowed, 0.0, -np.inf))
    return log_softmax(logits)


def _select_log_probability(log_p_bn: Variable, chosen_b: Indices) -> Variable:
    """The logarithms of the probabilities of what was chosen: (b,)."""
    return log_p_bn[np.arange(len(chosen_b)), chosen_b]


def _choose_greatest(log_p_bn: Floats) -> Indices:
    return log_p_bn.argmax(axis=1)


def _gumbel_choice(rng: np.random.Generator) -> ChoiceRule:
    """Drawn with these probabilities, by the Gumbel-max trick."""
    return lambda log_p_bn: (log_p_bn + rng.gumbel(size=log_p_bn.shape)).argmax(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _SystemOutcome:
    """What a history says of a system; of several agents, what we make of it."""

    scores_qm: Floats
    values_qm: Floats
    """Scores less the dollars of a call."""

    def utility(self, batch: Indices, draw: SystemChoices) -> Floats:
        """For each question of the batch: (b,)."""
        depth: int = draw.models_ba.shape[1]
        counts_ba = np.arange(depth) < draw.agents_b[:, None]
        scores_ba = self.scores_qm[batch[:, None], draw.models_ba]
        paid_ba = scores_ba - self.values_qm[batch[:, None], draw.models_ba]
        known_ba = counts_ba & ~np.isnan(scores_ba)
        total_b = np.where(known_ba, scores_ba, 0).sum(axis=1)
        mean_b: Floats = total_b / np.maximum(known_ba.sum(axis=1), 1)
        majority_b: Floats = np.heaviside(mean_b - 0.5, 0.5)
        solved_b: Floats = np.where(draw.agents_b == 1, mean_b, majority_b)
        return solved_b - np.where(known_ba, paid_ba, 0).sum(axis=1)
