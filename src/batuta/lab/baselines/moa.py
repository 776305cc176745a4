"""Mixture-of-Agents: layers of proposers, each of which reads all answers of the previous layer.

The method is that of Wang et al., "Mixture-of-Agents Enhances Large Language Model Capabilities"
(arXiv 2406.04692), sections 2.2 and 3.1. There are L layers: P proposers in every layer but the
last, and one aggregator in the last, so P(L - 1) + 1 calls. The paper's setting is L = 3 and P = 6,
which is 13 calls; `layers=2, proposers=7` is the form of 8 calls that the Conductor paper (arXiv
2512.04388) compares with.

As published, every worker that reads answers gets the paper's aggregate-and-synthesise prompt
(table 1) as its system prompt, and all but the aggregator answer at temperature 0.7.

Deviations
- The answers are in the user's message, between tags and in order, with the question and a subtask
  of our wording; in the paper they are a numbered list in the system prompt.
- The system prompt is added when the request is sent, so a trace shows the request without it.
- A worker has one temperature in a run, so an aggregator that also proposes has 0.7 in both roles.
- The proposers are the pool's best P workers; the workers of a smaller pool propose several times.
  The aggregator is the worker whose description recommends it most for combining or comparing
  answers, or for long context; the paper chose it by trial.
- We infer from the Conductor paper's pool that its 8 calls are 7 proposers and an aggregator.
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
from batuta.core.message import system_message
from batuta.core.workflow import Draft
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
"""The prompt of table 1 of the paper, without the list of responses that follows it there."""
SYNTHESIZE = (
    "Compare the solutions critically, for some may be biased or wrong, combine what is right in "
    "them, and solve the question step by step to one accurate final answer."
)


@dataclass(frozen=True, slots=True)
class MixtureOfAgents:
    """The conductor that plans the layers as one workflow."""

    layers: int = 3
    """The number L of layers, the aggregator's included."""
    proposers: int = 6
    """The number P of proposers per layer."""

    def __post_init__(self) -> None:
        if self.layers < 2 or self.proposers < 1:  # noqa: PLR2004 - a proposing and a last one
            raise ValueError("a mixture of agents needs at least two layers and one proposer")

    @property
    def name(self) -> str:
        """The method, its layers and its proposers."""
        return f"moa/{self.layers}x{self.proposers}"

    @property
    def calls(self) -> int:
        """The number of calls, P(L - 1) + 1."""
        return self.proposers * (self.layers - 1) + 1

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the layers, the same for every question; accept the answer in a later round.

        The plan is malformed if the layers have more steps than the limits allow.
        """
        if context.previous:
            return AcceptedAnswer()
        if self.calls > context.max_steps:
            reason = f"{self.name} has {self.calls} steps where {context.max_steps} are allowed"
            return MalformedPlan(draft=Draft(), reason=reason)
        return Plan(self.layered_workflow(context.pool))

    def layered_workflow(self, pool: Pool) -> Workflow:
        """Return the layers as a workflow of the pool's workers."""
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
        """Return the indices of the steps of the layer that ends before the step `index`."""
        return tuple(range(index - self.proposers, index))


@dataclass(frozen=True, slots=True)
class _SynthesisClient:
    """Adds the published system prompt to requests that show other answers."""

    client: Client

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        if any(SYNTHESIZE in message.text for message in request.messages):
            instruction = system_message(AGGREGATE_AND_SYNTHESIZE)
            request = replace(request, messages=(instruction, *request.messages))
        return await self.client.complete(request, listener)


@dataclass(frozen=True, slots=True)
class MixtureSolver:
    """The layers with the published system prompt and temperature."""

    agents: MixtureOfAgents = MixtureOfAgents()

    @property
    def name(self) -> str:
        """The method, its layers and its proposers."""
        return self.agents.name

    @property
    def calls(self) -> int:
        """The number of calls, P(L - 1) + 1."""
        return self.agents.calls

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Run the layers; the aggregator's reply is the answer."""
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
