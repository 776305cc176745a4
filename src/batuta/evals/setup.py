"""How a subject and its grader are opened: by names, so that any machine can do it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.clients import HttpTransport
from batuta.clients.cache import CallCache, CallJournal
from batuta.clients.cache_shared import open_shared_journal
from batuta.config.load import load_config
from batuta.core import Client, Conductor, Task, WorkerId
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError
from batuta.evals.grading import PROGRAM_PREFIX, AnswerGrader, open_answer_grader
from batuta.evals.subject import Subject
from batuta.sandbox import Sandbox, SandboxBackend
from batuta.solvers import LLMConductor
from batuta.tasks.graders.question_tests import QuestionTestRunner, find_question_tests


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSetup:
    """Names of what is evaluated; the files that they mean are the same on every machine."""

    pool: str | None = None
    """As for `load_config`."""
    rehearses: bool = False
    """Whether the questions are the rehearsal's: then it is used where no pool is named."""
    conductor: str | None = None
    journal: str | None = None
    """A file, or the URL of a PostgreSQL database; None: calls are not kept."""
    scope: str = ""
    """Within which a database's calls are shared: the evaluation's name."""
    judge: str | None = None
    """The worker that grades what no rule decides."""
    sandbox: str = SandboxBackend.AUTO.value

    async def open_subject(self, stack: AsyncExitStack) -> Subject:
        """The pool and its conductor; the connections end with the stack.

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
        return Subject(
            pool=loaded.pool,
            clients=loaded.clients,
            conductor=_asked_always(loaded.conductor),
            limits=loaded.limits,
            simulated=loaded.simulated,
        )

    async def open_journal(self, subject: Subject, stack: AsyncExitStack) -> Subject:
        """The same, whose finished calls are kept, if they are to be.

        Raises:
            ConfigError: the extra is missing.
            StoreError: the journal cannot be opened.
        """
        if self.journal is None:
            return subject
        if is_shared(self.journal):
            opened: CallJournal = await stack.enter_async_context(
                open_shared_journal(self.journal, self.scope)
            )
        else:
            opened = stack.enter_context(CallCache(Path(self.journal)))
        return subject.with_call_cache(opened)

    async def open_tests(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> Subject:
        """The same, which executes the tests that its questions show, if one of them shows some.

        Raises:
            SandboxError: programs cannot be run apart from the machine here.
        """
        programs = (task for task in tasks if task.grader.startswith(PROGRAM_PREFIX))
        if not any(find_question_tests(task.question) for task in programs):
            return subject
        sandbox = await stack.enter_async_context(Sandbox.open(self.sandbox))
        return replace(subject, run_tests=QuestionTestRunner(sandbox))

    async def open_marking(
        self, tasks: Sequence[Task], subject: Subject, stack: AsyncExitStack
    ) -> AnswerGrader:
        """The grader of those tasks.

        Raises:
            ConfigError: there is no such grader, sandbox or judge.
            SandboxError: programs cannot be run apart from the machine here.
        """
        if self.sandbox not in set(SandboxBackend):
            raise ConfigError(
                f"no sandbox {self.sandbox!r}; choose among: {', '.join(SandboxBackend)}"
            )
        judge = _find_judge(self.judge, subject)
        return await stack.enter_async_context(open_answer_grader(tasks, judge, self.sandbox))


def _asked_always(conductor: Conductor) -> Conductor:
    """The same without its breaker: what it is worth is measured on every question.

    Serving skips a conductor that wrote no workflow for several questions in a row; here those that
    follow would be measured without it, and in an order that depends on who was faster.
    """
    if isinstance(conductor, LLMConductor):
        return replace(conductor, health=None)
    return conductor


def is_shared(journal: str) -> bool:
    """Whether that journal can be written from several machines."""
    return journal.startswith(("postgresql://", "postgres://", "postgresql+asyncpg://"))


def _find_judge(name: str | None, subject: Subject) -> Client | None:
    if name is None:
        return None
    if name not in subject.pool:
        known = suggest_names(name, (worker.id for worker in subject.pool))
        raise ConfigError(f"there is no worker {name!r} to be the judge; {known}")
    return subject.clients[WorkerId(name)]
