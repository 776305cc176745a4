"""Mixture-of-Agents: layers of proposers, each reading all answers of the layer before it.

Wang et al., "Mixture-of-Agents Enhances Large Language Model Capabilities" (arXiv 2406.04692),
sections 2.2 and 3.1: L layers, P proposers in each but the last, one aggregator in the last, so
P(L - 1) + 1 calls. The paper's setting is L = 3, P = 6, which is 13 calls; `layers=2, proposers=7`
is the form of 8 calls that the Conductor paper (arXiv 2512.04388) compares with.

As published: whoever reads answers has the paper's aggregate-and-synthesise prompt (table 1) for a
system prompt, and the proposers, who are all but the aggregator, answer at temperature 0.7.

Deviations
- The answers that are read stand between tags in the user's message, in their order, beside the
  question and a subtask of our own wording; in the paper they are a numbered list in the system
  prompt.
- The system prompt is put before the request as it leaves: a trace shows the request without it.
- A worker has one temperature in a run: an aggregator that proposes too has 0.7 in both.
- The proposers are the pool's best P workers; a smaller pool takes turns. The aggregator is the
  worker that is praised most for comparing and for long context; the paper chose it by trial.
- That the Conductor paper's 8 calls are 7 proposers and an aggregator is inferred from its pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Client,
    Decision,
    MalformedPlan,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Request,
    Run,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.decision import Draft
from batuta.core.message import system_message
from batuta.engine.solver import SolverContext, run_conductor
from batuta.lab.baselines.roles import COMBINING, best_worker_for_role

AGGREGATE_AND_SYNTHESIZE = (
    "You have been provided with a set of responses from various open-source models to the latest "
    "user query. Your task is to synthesize these responses into a single, high-quality response. "
    "It is crucial to critically evaluate the information provided in these responses, recognizing "
    "that some of it may be biased or incorrect. Your response should not simply replicate the "
    "given answers but should offer a refined, accurate, and comprehensive reply to the "
    "instruction. Ensure your response is well-structured, coherent, and adheres to the highest "
    "standards of accuracy and reliability."
)
"""Table 1 of the paper, without the list of responses that follows it there."""
SYNTHESIZE = (
    "Compare the solutions critically, for some may be biased or wrong, combine what is right in "
    "them, and solve the question step by step to one accurate final answer."
)


@dataclass(frozen=True, slots=True)
class MixtureOfAgents:
    """The layers as a workflow."""

    layers: int = 3
    """L, the aggregator's included."""
    proposers: int = 6
    """P."""

    def __post_init__(self) -> None:
        if self.layers < 2 or self.proposers < 1:  # noqa: PLR2004 - a proposing and a last one
            raise ValueError("a mixture of agents needs at least two layers and one proposer")

    @property
    def name(self) -> str:
        """The method, its layers and its proposers."""
        return f"moa/{self.layers}x{self.proposers}"

    @property
    def calls(self) -> int:
        """P(L - 1) + 1."""
        return self.proposers * (self.layers - 1) + 1

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The same workflow for every question; in a later round, the answer stands."""
        if context.previous:
            return AcceptedAnswer()
        if self.calls > context.max_steps:
            reason = f"{self.name} has {self.calls} steps where {context.max_steps} are allowed"
            return MalformedPlan(draft=Draft(), reason=reason)
        return Plan(self.layered_workflow(context.pool))

    def layered_workflow(self, pool: Pool) -> Workflow:
        """The layers over that pool."""
        ranked = [worker.id for worker in pool.ranked()]
        team = [ranked[index % len(ranked)] for index in range(self.proposers)]
        steps = [Step(subtask="", worker=worker) for worker in team]
        for _ in range(self.layers - 2):
            above = self._previous_layer(len(steps))
            steps += [Step(subtask=SYNTHESIZE, worker=worker, access=above) for worker in team]
        last = Step(
            subtask=SYNTHESIZE,
            worker=best_worker_for_role(pool, COMBINING),
            access=self._previous_layer(len(steps)),
        )
        return Workflow((*steps, last))

    def _previous_layer(self, index: int) -> tuple[int, ...]:
        """The steps of the layer that ends before `index`."""
        return tuple(range(index - self.proposers, index))


@dataclass(frozen=True, slots=True)
class _SynthesisClient:
    """A worker that has the published system prompt wherever it reads other answers."""

    client: Client

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        if any(SYNTHESIZE in message.text for message in request.messages):
            told = system_message(AGGREGATE_AND_SYNTHESIZE)
            request = replace(request, messages=(told, *request.messages))
        return await self.client.complete(request, listener)


@dataclass(frozen=True, slots=True)
class MixtureSolver:
    """The layers, with the published system prompt and temperature."""

    agents: MixtureOfAgents = MixtureOfAgents()

    @property
    def name(self) -> str:
        """The method, its layers and its proposers."""
        return self.agents.name

    @property
    def calls(self) -> int:
        """P(L - 1) + 1."""
        return self.agents.calls

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """The run; its answer is the aggregator's."""
        flow = self.agents.layered_workflow(context.pool)
        for worker in {step.worker for step in flow.steps[:-1]}:
            context = context.with_sampling(worker)
        clients: Mapping[WorkerId, Client] = {
            worker: _SynthesisClient(client) for worker, client in context.clients.items()
        }
        return await run_conductor(
            question,
            self.agents,
            replace(context, clients=clients),
            seed,
            max_steps=self.calls,
            asks_anew=True,
        )
