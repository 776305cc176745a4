"""A conductor for which a language model writes the workflows (Conductor paper, section 3).

Deviation from the paper: after a malformed draft the engine samples again a bounded number of
times, then lets the best single worker answer; the authors' server returns an empty reply.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace

import anyio

from batuta.clients.resilience import WorkerHealth
from batuta.conductors.draft_breaker import (
    may_draft,
    note_abandoned,
    note_decision,
    skipped_decision,
)
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Client,
    Decision,
    Draft,
    Failure,
    Finish,
    MalformedPlan,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Request,
    ResponseFormat,
    Sampling,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER, PromptDescription
from batuta.core.redaction import clean_message
from batuta.errors import (
    BadRequestError,
    ClientError,
    FormRefusedError,
    LimitReachedError,
    WorkflowError,
)
from batuta.language import PromptOptions, conductor_request, parse_workflow
from batuta.language.answer_form import answer_after_program, ask_single_plainly
from batuta.language.conversation import crop_conversation
from batuta.language.draft_schema import BRIEF_BOUNDS, TextBounds, draft_format
from batuta.language.programs import provide_programs
from batuta.language.prompt import calls_by_name, worker_cards
from batuta.usage import ZERO_COST, ZERO_USAGE

PAPER_SAMPLING = Sampling(temperature=1.0, max_tokens=1024)
"""At most 1,024 tokens at temperature 1 (Conductor paper, section 4.1)."""
MOST_STRUCTURED_RETRIES = 1
"""Maximum number of times that a malformed draft constrained to JSON is sampled again."""


@dataclass(slots=True)
class StructuredDrafts:
    """How drafts are constrained to the JSON format of a workflow."""

    bounds: tuple[str, ...] = ()
    """The keywords of JSON Schema by which the provider can bound lengths, for `draft_format`."""
    is_forced: bool = False
    """Whether a provider without constrained output gets the format described in the prompt; if
    False, it gets the prompt for unconstrained drafts."""
    is_refused: bool = False
    """Whether the provider has refused the format, which is then not requested again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMConductor:
    """A conductor that samples its drafts from a Client."""

    name: str
    client: Client
    rendering: PromptOptions = PromptOptions()
    sampling: Sampling = PAPER_SAMPLING
    rounds: int | None = None
    """Maximum number of rounds that the model plans, after which the answer is accepted without
    asking the model; None: any number."""
    worker: Worker | None = None
    """The worker that writes the drafts, with its price; None: the model runs in this process, and
    nothing is reserved for its calls."""
    structured: StructuredDrafts | None = None
    """None if the model writes its draft without constraints."""
    health: WorkerHealth | None = None
    """The breaker, which skips the model for a while after malformed drafts in a row; None: none.
    """

    def describe(self, pool: Pool) -> PromptDescription:
        """Return what the model's prompt says about the workers."""
        shown = self.rendering
        context = PlanningContext(question=Question.of("(the question)"), pool=pool)
        form = self._draft_form(context)
        request = conductor_request(context, shown, self.sampling, form)
        text = "\n\n".join(message.text for message in request.messages)
        cards: dict[WorkerId, tuple[str, ...]] = {}
        for worker, card in zip(pool, worker_cards(pool, shown, form), strict=True):
            if shown.compact:
                named = f"{worker.id}: "
                lines = [line for line in text.splitlines() if line.startswith(named)]
            else:
                lines = card.splitlines()
            cards[worker.id] = tuple(lines)
        return PromptDescription(text=text, cards=cards, shown=_describe_options(shown))

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Ask the model for one draft, and parse it.

        If its rounds are used up, the model is not asked and the answer is accepted. The plan is
        malformed without a call if a rule hides the question from the model, while the breaker
        skips it, or if a limit of the run forbids the call.
        """
        if self.rounds is not None and len(context.previous) >= self.rounds:
            return AcceptedAnswer()
        if self.worker is not None and self.worker.id in context.forbidden:
            reason = f"a rule forbids {self.worker.id} to see the question"
            return MalformedPlan(draft=Draft(), reason=reason, outage=True, again=False)
        health = self.health
        if health is None:
            return await self._draft(context, listener)
        if not may_draft(health, context):
            return skipped_decision(health)
        began = time.perf_counter()
        try:
            decision = await self._draft(context, listener)
        except BaseException:
            note_abandoned(health, context)
            raise
        note_decision(health, context, decision, time.perf_counter() - began)
        return decision

    async def _draft(self, context: PlanningContext, listener: CallListener) -> Decision:
        request = self._request(context, self._draft_form(context))
        cropping = crop_conversation(context.question)[1]
        try:
            if self.worker is not None:
                request = await listener.before_call(request, self.worker)
        except LimitReachedError as error:
            return MalformedPlan(draft=Draft(), reason=str(error), outage=True)
        try:
            reply, request = await self._complete(context, request, listener)
        except anyio.get_cancelled_exc_class():
            await self._report_cancelled_call(request, listener)
            raise
        except LimitReachedError as error:
            return MalformedPlan(draft=Draft(request=request), reason=str(error), outage=True)
        except ClientError as error:
            lost = Draft(
                usage=error.usage or ZERO_USAGE,
                cost=error.cost or ZERO_COST,
                request=request,
                cropping=cropping,
            )
            return MalformedPlan(
                draft=lost,
                reason=f"the conductor's model failed: {clean_message(str(error))}",
                outage=True,
                again=error.retryable,
            )
        draft = Draft(
            text=reply.text,
            usage=reply.usage,
            cost=reply.cost,
            request=request,
            cropping=cropping,
        )
        try:
            return self._read(context, reply, draft)
        except WorkflowError as error:
            limit = request.sampling.max_tokens
            where = "" if limit is None else f" at {limit} tokens"
            note = f"the reply was truncated{where}: " if reply.finish is Finish.LENGTH else ""
            constrained = request.response_format is not None
            again = not constrained or context.sample < MOST_STRUCTURED_RETRIES
            return MalformedPlan(draft=draft, reason=f"{note}{error}", again=again)

    def _read(self, context: PlanningContext, reply: Reply, draft: Draft) -> Plan | AcceptedAnswer:
        """Return the decision in the reply.

        Raises:
            WorkflowError: the reply contains no valid workflow.
        """
        read = parse_workflow(
            reply.text,
            context.pool,
            max_steps=context.max_steps,
            revise=bool(context.previous),
            truncated=reply.finish is Finish.LENGTH,
        )
        if isinstance(read, AcceptedAnswer):
            return AcceptedAnswer(draft)
        return Plan(self._amend(read, context), draft)

    def _amend(self, workflow: Workflow, context: PlanningContext) -> Workflow:
        """Correct the workflow so that its programs exist and its answer has the requested form.

        After a compact prompt, which only trained models get, only the programs are corrected.

        Raises:
            WorkflowError: a step runs a program, but none is given and no earlier step writes one.
        """
        pool, text = context.pool, context.question.text
        workflow = provide_programs(workflow, pool, text)
        if self.rendering.compact:
            return workflow
        if self.rendering.brief and not context.previous:
            workflow = ask_single_plainly(workflow, pool)
        return answer_after_program(workflow, pool, text, context.max_steps)

    def _request(self, context: PlanningContext, form: ResponseFormat | None) -> Request:
        """Return the request for a draft, with a seed for this sample."""
        seed = (context.seed * 1_000_003 + context.sample) % 2**31
        sampling = replace(self.sampling, seed=seed)
        return conductor_request(context, self.rendering, sampling, form)

    def _draft_form(self, context: PlanningContext) -> ResponseFormat | None:
        """Return the format to which the provider constrains the draft, or None."""
        structured = self.structured
        if structured is None or structured.is_refused or self.rendering.compact:
            return None
        return draft_format(
            context.pool,
            context.max_steps,
            revise=bool(context.previous),
            bounds=structured.bounds,
            texts=BRIEF_BOUNDS if self.rendering.brief else TextBounds(),
            names=calls_by_name(context.pool, self.rendering),
            words_suffice=structured.is_forced,
        )

    async def _complete(
        self, context: PlanningContext, request: Request, listener: CallListener
    ) -> tuple[Reply, Request]:
        """Return the reply and its request.

        If the provider refuses a request with a format, the model is called again without a format.

        Raises:
            ClientError: there is no usable reply.
            LimitReachedError: a limit forbids another call.
        """
        try:
            return await self.client.complete(request, listener), request
        except BadRequestError as error:
            if self.structured is None or request.response_format is None:
                raise
            failure = Failure.of(error)
            self.structured.is_refused |= isinstance(error, FormRefusedError)
        await listener.on_failure(failure)
        free = self._request(context, None)
        reply = await self.client.complete(free, listener)
        self.structured.is_refused = True
        return reply, free

    async def _report_cancelled_call(self, request: Request, listener: CallListener) -> None:
        price = self.worker.price if self.worker else None
        failure = Failure.estimated("cancelled", "planning was cancelled", request, price)
        with suppress(LimitReachedError):  # no further attempt follows
            await listener.on_failure(failure)


def _describe_options(shown: PromptOptions) -> str:
    """Return a clause on what the prompt shows about the workers; empty for the compact prompt."""
    if shown.compact:
        return ""
    shown_note = ", shown their cards" if shown.descriptions else ", shown their numbers only"
    return f"{shown_note} and prices" if shown.prices else shown_note
