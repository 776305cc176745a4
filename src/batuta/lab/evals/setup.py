"""Opens a subject and its grader from names, so that any machine can do it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.clients import HttpTransport
from batuta.clients.cache_shared import open_call_journal
from batuta.clients.providers import Identity, client_identity, identity_digest
from batuta.conductors import LLMConductor
from batuta.config.load import load_config
from batuta.config.loaded import LoadedConfig
from batuta.config.served_systems import LOCAL_TENANT
from batuta.core import Client, Conductor, Task, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError
from batuta.lab.evals.grading import PROGRAM_PREFIX, AnswerGrader, open_answer_grader
from batuta.lab.evals.pool_record import note_identities
from batuta.lab.evals.subject import Subject
from batuta.lab.tasks.graders.question_tests import QuestionTestRunner, find_question_tests
from batuta.sandbox import Sandbox, SandboxBackend

JUDGE = "the judge"
"""The name of the model that grades answers which no rule decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSetup:
    """The names of what is evaluated; their files must be the same on every machine."""

    pool: str | None = None
    """The pool, as `load_config` takes it."""
    rehearses: bool = False
    """Whether the questions are the rehearsal's; its pool is then the default."""
    conductor: str | None = None
    journal: str | None = None
    """A file, or the URL of a PostgreSQL database; None if calls are not kept."""
    scope: str = ""
    """The evaluation's name, within which a database's calls are shared."""
    judge: str | None = None
    """The worker that grades answers which no rule decides."""
    sandbox: str = SandboxBackend.AUTO.value
    calibrates: bool = False
    """True if the runs are to say how sure answers are: then each may be asked for again."""

    async def open_subject(self, stack: AsyncExitStack) -> Subject:
        """Open the pool and its conductor; the connections close with the stack.

        Raises:
            ConfigError: there is no such pool or conductor, or a key is missing.
        """
        http = await stack.enter_async_context(HttpTransport())
        loaded = await load_config(
            http,
            pool=self.pool,
            conductor=self.conductor,
            time_scale=0.0,
            rehearses=self.rehearses,
        )
        subject = subject_of(loaded)
        if not self.calibrates or subject.confidence is None:
            return subject
        return replace(subject, confidence=replace(subject.confidence, collects=True))

    def note_pool(
        self, subject: Subject, folder: Path, *, write: bool = True
    ) -> tuple[Subject, str]:
        """Note who was replaced since the folder was begun, in the subject and in a sentence."""
        judge: Identity = {"worker": self.judge or "nobody"}
        if self.judge and (client := subject.clients.get(WorkerId(self.judge))):
            judge = {**judge, "reached": identity_digest(client_identity(client))}
        found = note_identities(folder, {**subject.identities, JUDGE: judge}, write=write)
        return replace(subject, replaced=found.replaced), found.sentence

    async def open_journal(self, subject: Subject, stack: AsyncExitStack) -> Subject:
        """Return the subject with a journal of finished calls, if the setup names one.

        Raises:
            ConfigError: the extra is missing.
        """
        if self.journal is None:
            return subject
        opened = await stack.enter_async_context(open_call_journal(self.journal, self.scope))
        return subject.with_call_cache(opened)

    async def open_tests(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> Subject:
        """Return the subject with a runner for the tests that its questions show, if any do.

        Raises:
            SandboxError: programs cannot be isolated here.
        """
        programs = (task for task in tasks if task.grader.startswith(PROGRAM_PREFIX))
        if not any(find_question_tests(task.question) for task in programs):
            return subject
        sandbox = await stack.enter_async_context(Sandbox.open(self.sandbox))
        return replace(subject, run_tests=QuestionTestRunner(sandbox))

    async def open_marking(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> AnswerGrader:
        """Open the grader of those tasks.

        Raises:
            ConfigError: there is no such grader, sandbox or judge.
            SandboxError: programs cannot be isolated here.
        """
        if self.sandbox not in set(SandboxBackend):
            raise ConfigError(
                f"no sandbox {self.sandbox!r}; choose among: {', '.join(SandboxBackend)}"
            )
        judge = _find_judge(self.judge, subject)
        return await stack.enter_async_context(open_answer_grader(tasks, judge, self.sandbox))


def subject_of(loaded: LoadedConfig) -> Subject:
    """Return the subject of a pool and its conductor, as they are served."""
    return Subject(
        pool=loaded.pool,
        clients=loaded.clients,
        conductor=_without_breaker(loaded.conductor),
        mini=loaded.mini and _without_breaker(loaded.mini),
        limits=loaded.limits,
        max_rounds=loaded.max_rounds,
        presets=tuple(
            replace(one, conductor=one.conductor and _without_breaker(one.conductor))
            for one in loaded.presets
        ),
        confidence=loaded.confidence,
        timeouts=loaded.timeouts,
        guardrails=loaded.guardrails,
        plan_rules=loaded.plan_rules.of_tenant(LOCAL_TENANT),
        terms=loaded.terms,
        notes=loaded.notes,
        source=loaded.source,
        simulated=loaded.simulated,
    )


def _without_breaker(conductor: Conductor) -> Conductor:
    """Return the conductor without its breaker, so that it is measured on every question.

    Serving skips a conductor that wrote no workflow for several questions in a row. Here later
    questions would be measured without it, and which ones would depend on timing.
    """
    if isinstance(conductor, LLMConductor):
        return replace(conductor, health=None)
    return conductor


def _find_judge(name: str | None, subject: Subject) -> Client | None:
    if name is None:
        return None
    if name not in subject.pool:
        known = suggest_names(name, (worker.id for worker in subject.pool))
        raise ConfigError(f"there is no worker {name!r} to be the judge; {known}")
    return subject.clients[WorkerId(name)]
