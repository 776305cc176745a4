"""Plan rules: restrictions that every workflow must keep, from any conductor. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batuta.core import Pool, Step, Worker, WorkerId, Workflow
from batuta.core.formatting import as_sentence

CHECK_SUBTASK = (
    "Check the answer step by step, correct what is wrong, and give the complete answer."
)
"""The subtask of a checking step that a rule adds."""
MAX_TAGS = 16
"""Maximum number of tags of a question or a key."""
_TAG = re.compile(r"[a-z0-9][a-z0-9._:-]{0,63}")
_CHECK_WORD = re.compile(
    r"\b(?:check|verif|review|critici|critique|validat|audit|proofread|examin)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """A rule of exactly one kind.

    Raises:
        ValueError: the rule has no kind, or several.
    """

    name: str
    says: str = ""
    """The operator's explanation; empty: a default sentence."""
    tenant: str = ""
    """The tenant to whose questions the rule applies; empty: all tenants."""
    tag: str = ""
    """The tag of the questions to which the rule applies; empty: all questions."""
    max_parallel: int | None = None
    """Maximum number of steps that can run at the same time."""
    no_self_check: bool = False
    """Whether a checking or last step that reads others must read one of another provider."""
    needs_check: bool = False
    """Whether the last step must check the answer of another worker."""
    forbidden: tuple[WorkerId, ...] = ()
    """Workers that may not see the question."""

    def __post_init__(self) -> None:
        kinds = (self.max_parallel, self.no_self_check, self.needs_check, self.forbidden)
        if sum(kind not in (None, False, ()) for kind in kinds) != 1:
            raise ValueError(f"the rule {self.name} needs exactly one kind")

    @property
    def sentence(self) -> str:
        """The rule as a sentence for people."""
        return self.says or as_sentence(self.demand)

    @property
    def demand(self) -> str:
        """The requirement on a plan, as a clause for the conductor."""
        if self.max_parallel is not None:
            return f"at most {self.max_parallel} steps of a plan may run at the same time"
        if self.no_self_check:
            return (
                "a step that checks, and the last step, must not read only steps of their own "
                "provider's workers"
            )
        if self.needs_check:
            return (
                "the last step must read the answer of another worker and its subtask must begin "
                'with the word "Check"'
            )
        return "some workers may not see this question"


@dataclass(frozen=True, slots=True)
class PlanRules:
    """The rules for a question, or for all questions of a server."""

    rules: tuple[PlanRule, ...] = ()
    providers: Mapping[WorkerId, str] = field(default_factory=dict[WorkerId, str])
    """The provider of each worker; a worker without an entry counts as its own provider."""

    def of_tenant(self, tenant: str) -> PlanRules:
        """Return the rules for that tenant's questions; `NO_RULES` if none apply."""
        rules = tuple(rule for rule in self.rules if rule.tenant in {"", tenant})
        return replace(self, rules=rules) if rules else NO_RULES

    def of_tags(self, tags: Collection[str]) -> PlanRules:
        """Return the rules for questions with these tags; `NO_RULES` if none apply."""
        rules = tuple(rule for rule in self.rules if not rule.tag or rule.tag in tags)
        return replace(self, rules=rules) if rules else NO_RULES

    @property
    def checking_rule(self) -> PlanRule | None:
        """The rule that every answer must be checked; None if there is none."""
        return next((rule for rule in self.rules if rule.needs_check), None)

    @property
    def forbidden(self) -> frozenset[WorkerId]:
        """All workers that may not see the question."""
        return frozenset(worker for rule in self.rules for worker in rule.forbidden)

    def forbidding_rule(self, worker: WorkerId) -> PlanRule | None:
        """Return the rule that hides the question from that worker; None if there is none."""
        return next((rule for rule in self.rules if worker in rule.forbidden), None)

    def allowed_workers(self, pool: Pool) -> tuple[Worker, ...]:
        """Return the workers of the pool that may see the question."""
        forbidden = self.forbidden
        return tuple(worker for worker in pool if worker.id not in forbidden)

    def find_broken(self, workflow: Workflow, before: Sequence[WorkerId] = ()) -> PlanRule | None:
        """Return the first rule that the workflow breaks; None if it keeps all rules.

        Args:
            workflow: the workflow to be run.
            before: the workers of the previous round, which steps with `previous` read.
        """
        return next((r for r in self.rules if self._is_broken(r, workflow, before)), None)

    def _is_broken(self, rule: PlanRule, workflow: Workflow, before: Sequence[WorkerId]) -> bool:
        if rule.max_parallel is not None:
            return most_parallel(workflow) > rule.max_parallel
        if rule.no_self_check:
            steps = range(len(workflow))
            return any(self._checks_itself(workflow, index, before) for index in steps)
        if rule.needs_check:
            last, read = workflow.steps[-1], _read_workers(workflow, len(workflow) - 1, before)
            return not is_check(last) or all(worker == last.worker for worker in read)
        return any(step.worker in rule.forbidden for step in workflow.steps)

    def _checks_itself(self, workflow: Workflow, index: int, before: Sequence[WorkerId]) -> bool:
        """Return True if the step checks, or answers from, only replies of its own provider."""
        step, read = workflow.steps[index], _read_workers(workflow, index, before)
        if not read or not (is_check(step) or index == len(workflow) - 1):
            return False
        own = self._provider(step.worker)
        return all(self._provider(worker) == own for worker in read)

    def _provider(self, worker: WorkerId) -> str:
        return self.providers.get(worker, worker)

    def repair(
        self,
        workflow: Workflow,
        able: Sequence[WorkerId],
        max_steps: int,
        before: Sequence[WorkerId] = (),
    ) -> Workflow | None:
        """Return the workflow, changed so that it keeps all rules; None if it cannot be repaired.

        Forbidden workers, and workers that would check their own provider, are replaced by the best
        worker that keeps the rule; a missing check is added. A violation of `max_parallel` is not
        repaired.

        Args:
            workflow: the workflow, which breaks a rule.
            able: the workers that may see the question, best first.
            max_steps: maximum number of steps.
            before: the workers of the previous round, which steps with `previous` read.
        """
        steps = list(workflow.steps)
        for index, step in enumerate(steps):
            if step.worker not in self.forbidden:
                continue
            if not able:
                return None
            steps[index] = replace(step, worker=able[0])
        fixed = Workflow(tuple(steps))
        if any(self._is_broken(r, fixed, before) for r in self.rules if r.needs_check):
            if len(fixed) >= max_steps:
                return None
            fixed = self._with_check(fixed, able)
        if any(rule.no_self_check for rule in self.rules):
            fixed = self._with_other_checkers(fixed, able, before)
        return fixed if self.find_broken(fixed, before) is None else None

    def _with_check(self, workflow: Workflow, able: Sequence[WorkerId]) -> Workflow:
        """Append a step that checks the answer, by another provider's best worker if possible."""
        last = workflow.steps[-1].worker
        others = [worker for worker in able if worker != last] or [last]
        foreign = [w for w in others if self._provider(w) != self._provider(last)]
        check = Step(
            subtask=CHECK_SUBTASK, worker=(foreign or others)[0], access=(len(workflow) - 1,)
        )
        return Workflow((*workflow.steps, check))

    def _with_other_checkers(
        self, workflow: Workflow, able: Sequence[WorkerId], before: Sequence[WorkerId]
    ) -> Workflow:
        """Replace workers so that no step checks its own provider's answer, where possible."""
        for index in range(len(workflow)):
            if not self._checks_itself(workflow, index, before):
                continue
            for worker in able:
                changed = with_worker(workflow, index, worker)
                if not self._checks_itself(changed, index, before):
                    workflow = changed
                    break
        return workflow


NO_RULES = PlanRules()
"""The absence of rules, compared by identity so that no rule is evaluated."""


def read_tag(text: str) -> str:
    """Return a question's tag in lower case, so that rules match regardless of case.

    Raises:
        ValueError: the text is not a tag.
    """
    tag = text.lower()
    if not _TAG.fullmatch(tag):
        raise ValueError(
            f"{text[:80]!r} is not a valid tag: use up to 64 letters, digits and . _ : - and begin "
            "with a letter or a digit"
        )
    return tag


def is_check(step: Step) -> bool:
    """Return True if the step's subtask contains an English word for checking."""
    return _CHECK_WORD.search(step.subtask) is not None


def with_worker(workflow: Workflow, index: int, worker: WorkerId) -> Workflow:
    """Return the workflow with `worker` for step `index`."""
    steps = list(workflow.steps)
    steps[index] = replace(steps[index], worker=worker)
    return Workflow(tuple(steps))


def _read_workers(
    workflow: Workflow, index: int, before: Sequence[WorkerId]
) -> tuple[WorkerId, ...]:
    step = workflow.steps[index]
    read = tuple(workflow.steps[earlier].worker for earlier in step.access)
    return (*read, *before) if step.previous else read


def most_parallel(workflow: Workflow) -> int:
    """Return the maximum number of steps that can run at the same time, for any durations.

    By Dilworth's theorem, the largest set of mutually independent steps is as large as the smallest
    number of chains that cover all steps, which follows from a maximum bipartite matching.
    """
    count = len(workflow)
    waits: list[set[int]] = []
    for step in workflow.steps:
        waits.append(set(step.access).union(*(waits[earlier] for earlier in step.access)))
    follower: dict[int, int] = {}

    def match(late: int, seen: set[int]) -> bool:
        for early in waits[late] - seen:
            seen.add(early)
            if early not in follower or match(follower[early], seen):
                follower[early] = late
                return True
        return False

    return count - sum(match(late, set()) for late in range(count))
