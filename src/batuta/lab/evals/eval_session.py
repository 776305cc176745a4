"""Measures systems in sequence: calibrates the workers, fits and runs systems, collects results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from batuta.conductors import best_single_worker
from batuta.core import Pool, Question, Sampling, WorkerId, user_message
from batuta.engine.solver import run_conductor
from batuta.errors import ConfigError, SourceError
from batuta.lab.baselines import Cascade
from batuta.lab.baselines.checker import EXECUTED_TESTS, Checker
from batuta.lab.baselines.routing.skill_learning import learn_handbook
from batuta.lab.baselines.routing.skill_orchestra import NAME, SkillOrchestra
from batuta.lab.evals.checker_calibration import calibrate_checker, calibrate_tests
from batuta.lab.evals.evaluation import EvalPart, Evaluation, warn_unmeasured
from batuta.lab.evals.fitted_methods import FittedFile, FittedMethod, describe_fitted, fitted_key
from batuta.lab.evals.forecast import EvalForecast, ExpectedCalls, expect_calls
from batuta.lab.evals.learned_methods import (
    CHECKED_CASCADE,
    SKILLS,
    adapt_to_record,
    history_digest,
    measured_history,
)
from batuta.lab.evals.matched_budget import EqualResource, MatchedBudget, match_calls, match_cost
from batuta.lab.evals.result_log import ResultLog, TrialResult
from batuta.lab.evals.runner import EvalOptions, EvalTrial, plan_trials, run_trials
from batuta.lab.evals.stats import mean_or_none
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import ALL as ALL_SYSTEMS
from batuta.lab.evals.systems import (
    BEST_SINGLE,
    MOST_SAMPLES,
    ULTRA,
    System,
    calibration_system,
    find_system,
    runnable_systems,
    why_not_runnable,
)
from batuta.lab.learners.history import History

StartProgress = Callable[[str, int], Callable[[], None]]
"""Starts a progress bar of that name and size, and returns a function that advances it by one."""
_SAMPLING = Sampling(temperature=0, max_tokens=2048)


async def learn_skills(part: EvalPart, history: History, *, concurrency: int) -> SkillOrchestra:
    """Return SkillOrchestra with a handbook learned from the workers' outcomes on other questions.

    The best model of the pool names the skills and labels the history's questions; later it says
    which skills each question needs. The cost of learning, like that of calibration, is not part of
    any run.

    Raises:
        ConfigError: the pool has no model, or the model names no skill.
    """
    subject, seed = part.subject, part.seeds[0]
    models = [worker.id for worker in subject.pool.ranked() if worker.is_model]
    if not models:
        raise ConfigError(f"{NAME} asks a model which skills questions need: the pool has no model")
    context = subject.solver_context().restrict_to(models[0])

    async def ask(prompt: str) -> str:
        question = Question(messages=(user_message(prompt),), sampling=_SAMPLING)
        run = await run_conductor(question, best_single_worker(), context, seed)
        return run.answer or ""

    handbook = await learn_handbook(history, ask, seed=seed, concurrency=concurrency)
    return SkillOrchestra(handbook=handbook, orchestrator=models[0])


BUDGET_SPENT = "the budget was spent before it could run"
NOTHING_LEFT = (
    "it must learn from other questions, and none are left: use fewer with --limit, or for a "
    "record another --split"
)


async def evaluate_parts(
    parts: Sequence[EvalPart],
    names: Sequence[str],
    options: EvalOptions,
    result_log: ResultLog,
    *,
    bar: StartProgress = lambda _, __: lambda: None,
    equal: Sequence[EqualResource] = (),
) -> Evaluation:
    """Measure the systems of those names.

    All parts must have the same grader. The name `all` stands for the systems of
    `runnable_systems`. `equal` also measures self-consistency and best-of-N with as many calls, or
    as much money, as the mean of `ultra`, or of the first system if there is no conductor. On a
    record, best-of-N needs simulated replies.

    Raises:
        ConfigError: there is no system of a name, the server would refuse it, or no system can be
            measured here.
        ExceptionGroup: a run failed or a result could not be written; it has the first error.
        StoreError: a run could not be archived, or a fitted method could not be written.
    """
    subject = parts[0].subject
    session = _EvalSession(parts, options, result_log, bar)
    wanted = session.runnable(_find_systems(names, subject, equal))
    for group in _group_systems(wanted, subject):
        await session.measure(*group)
    if not session.systems and not session.unasked:
        reasons = "; ".join(f"{name}: {why}" for name, why in session.left_out.items())
        raise ConfigError(f"nothing can be measured. {reasons}")
    first = [one.name for one in session.systems[:1]]
    budgets = [
        await session.equalise(name, what) for name in first for what in dict.fromkeys(equal)
    ]
    order = [one.name for one in wanted]
    measured = {one.name: one for one in session.systems}
    kept = dict.fromkeys(name for name in (*order, *measured) if name in measured)
    return Evaluation(
        parts=tuple(session.calibrated_parts),
        options=options,
        systems=tuple(measured[name] for name in kept),
        results={name: session.results[name] for name in kept},
        strengths=session.strengths(),
        budgets=tuple(budget for budget in budgets if budget),
        left_out=session.left_out,
        unasked=session.unasked,
        fitted={name: tuple(found) for name, found in session.fitted.items()},
    )


async def forecast_parts(
    parts: Sequence[EvalPart],
    names: Sequence[str],
    options: EvalOptions,
    result_log: ResultLog,
    *,
    equal: Sequence[EqualResource] = (),
) -> EvalForecast:
    """Forecast the calls of `evaluate_parts` without making any call.

    Raises:
        ConfigError: there is no system of a name, or the server would refuse it.
    """
    session = _EvalSession(parts, options, result_log, lambda _, __: lambda: None)
    wanted = session.runnable(_find_systems(names, parts[0].subject, equal))
    found = await session.forecast(wanted, calibrates=bool(equal))
    if equal and wanted:  # two methods have the budget of the first system
        found["equal"] = found[wanted[0].name].scale(2 * len(set(equal)))
    needs = bool(equal) or any(one.needs_calibration for one in wanted)
    known = all(part.history is not None or part.tasks.calibration for part in parts)
    notes = (warn_unmeasured(parts[0].subject.pool),) if needs and not known else ()
    return EvalForecast({name: calls for name, calls in found.items() if calls.calls}, notes)


def check_systems(names: Sequence[str], subject: Subject) -> None:
    """Raise a ConfigError if a name is not that of a system, or the server would refuse it."""
    _find_systems(names, subject, ())


def _find_systems(
    names: Sequence[str], subject: Subject, equal: Sequence[EqualResource]
) -> list[System]:
    """Find the systems by name, with `ultra` first if other systems get its budget."""
    wanted = [find_system(name, subject) for name in _expand_names(names, subject)]
    if equal:
        find_system("self-consistency@2", subject)  # refused before anything is paid for
    if equal and subject.conductor is not None:
        first = find_system(ULTRA, subject)
        wanted = [first, *(other for other in wanted if other.name != ULTRA)]
    return wanted


def _expand_names(names: Sequence[str], subject: Subject) -> list[str]:
    found = [
        each
        for name in names
        for each in (runnable_systems(subject) if name == ALL_SYSTEMS else (name,))
    ]
    return list(dict.fromkeys(found))


def _group_systems(wanted: Sequence[System], subject: Subject) -> Iterator[list[System]]:
    """Yield the systems in order; on a record, those with `uses_all_answers` form one group."""
    shared = [one for one in wanted if one.uses_all_answers and subject.answer_cache is not None]
    for one in wanted:
        if one not in shared:
            yield [one]
        elif one is shared[0]:
            yield shared


class _EvalSession:
    """The systems measured so far, and the calibration and fits that they use."""

    def __init__(
        self,
        parts: Sequence[EvalPart],
        options: EvalOptions,
        result_log: ResultLog,
        bar: StartProgress,
    ) -> None:
        self.parts = tuple(parts)
        self.calibrated_parts = list(parts)
        """The parts with the workers' measured strengths, for systems that need calibration."""
        self.options = options
        self.result_log = result_log
        self.bar = bar
        self.systems: list[System] = []
        self.results: dict[str, tuple[TrialResult, ...]] = {}
        self.left_out: dict[str, str] = {}
        self.unasked = 0
        """Runs that did not start because the budget did not allow them."""
        self.fitted: dict[str, list[FittedMethod | None]] = {}
        self._fitted_file = FittedFile(result_log.path.parent)
        self.checkers: dict[int, Checker | None] = {}
        """The checker with the rates measured on a part, by the part's `id()`; None if unusable."""
        self.executed: dict[int, Checker | None] = {}
        """The tests that questions show, as a checker with the rates measured on a part, by the
        part's `id()`; None if the tests are uninformative."""
        self.skills: dict[int, SkillOrchestra] = {}
        """SkillOrchestra with the handbook learned on a part, by the part's `id()`."""
        self._is_calibrated = False

    def runnable(self, wanted: Sequence[System]) -> list[System]:
        """Return the systems that can be run here, and record why the others cannot."""
        known = all(part.history is not None or part.tasks.calibration for part in self.parts)
        found: list[System] = []
        for one in wanted:
            why = why_not_runnable(one, self.parts[0].subject)
            if why is None and one.fitter is not None and not known:
                why = NOTHING_LEFT
            if why is None:
                found.append(one)
            else:
                self.left_out[one.name] = why
        return found

    async def measure(self, *systems: System) -> None:
        """Run the systems on every part, unless they ran before.

        A system that cannot be fitted to these outcomes, or that comes after the budget is spent,
        is left out with the reason. The other systems are still measured.
        """
        planned: dict[str, list[EvalTrial]] = {}
        for one in systems:
            if one.name in self.results:
                continue
            if one.needs_calibration:
                await self._calibrate()
            if self._is_spent:
                self._leave_unasked(one)
                continue
            try:
                planned[one.name] = await self._plan_system(one)
            except (ConfigError, SourceError) as error:
                self.fitted.pop(one.name, None)
                if self._is_spent:  # the calls by which it learns were refused
                    self._leave_unasked(one)
                else:
                    self.left_out[one.name] = str(error)
                continue
            self.systems.append(one)
        bars = {name: self.bar(name, len(found)) for name, found in planned.items()}
        interleaved = [trial for row in zip_longest(*planned.values()) for trial in row if trial]
        results = await self._run_planned(interleaved, lambda name: bars[name]())
        for name in planned:
            self.results[name] = tuple(run for run in results if run.system == name)

    def _leave_unasked(self, one: System) -> None:
        """Leave the system out because the budget is spent, and count its missing runs."""
        self.left_out[one.name] = BUDGET_SPENT
        parts = self.calibrated_parts if one.needs_calibration else self.parts
        planned = [trial for part in parts for trial in self._plan_keys(one, part)]
        self.unasked += sum(not self.result_log.is_done(trial.key) for trial in planned)

    async def _plan_system(self, one: System) -> list[EvalTrial]:
        """Measure what the system learns from, fit it, and return its trials on every part."""
        if one.name == CHECKED_CASCADE:
            await self._calibrate_checkers()
        if one.name.startswith("cascade"):
            await self._calibrate_tests()
        if one.name == SKILLS:
            await self._learn_skills(one)
        parts = self.calibrated_parts if one.needs_calibration else self.parts
        return [trial for part in parts for trial in self._plan_part(one, part)]

    @property
    def _is_spent(self) -> bool:
        """Whether the budget has refused a call."""
        limit = self.parts[0].subject.call_limit
        return limit is not None and limit.is_spent

    async def forecast(
        self, wanted: Sequence[System], *, calibrates: bool
    ) -> dict[str, ExpectedCalls]:
        """Forecast the calls that are still to be made, by system.

        `calibrates` also forecasts the calibration if no system needs it.
        """
        found: dict[str, ExpectedCalls] = {}
        if calibrates or any(one.needs_calibration for one in wanted):
            planned = [
                trial
                for part in self.parts
                if part.history is None
                for own in self._plan_calibration(part).values()
                for trial in own
            ]
            found["calibration"] = self._expect_missing(planned)
            if not found["calibration"].calls:  # every result is in the log: this is free
                await self._calibrate()
        for one in wanted:
            parts = self.calibrated_parts if one.needs_calibration else self.parts
            trials = [trial for part in parts for trial in self._plan_keys(one, part)]
            found[one.name] = self._expect_missing(trials)
        return found

    def _expect_missing(self, planned: Sequence[EvalTrial]) -> ExpectedCalls:
        return expect_calls([one for one in planned if not self.result_log.is_done(one.key)])

    def _plan_keys(self, one: System, part: EvalPart) -> tuple[EvalTrial, ...]:
        """Return the part's trials, with an unfitted system if the system learns."""
        return plan_trials(
            one,
            [(task, part.tasks.family(task)) for task in part.tasks.tasks],
            subject=part.subject,
            options=replace(self.options, seeds=part.seeds),
            history_digest=history_digest(part.history) if one.fitter and part.history else "",
        )

    def _plan_part(self, one: System, part: EvalPart) -> tuple[EvalTrial, ...]:
        """Return the part's trials; a system that learns is fitted, unless all trials are done."""
        found = self._plan_keys(one, part)
        if one.fitter is None:
            return found
        assert part.history is not None  # noqa: S101 - `runnable` has checked it
        key = fitted_key([trial.key for trial in found])
        kept = self.fitted.setdefault(one.name, [])
        if all(self.result_log.is_done(trial.key) for trial in found):
            kept.append(self._fitted_file.get(key))
            return found
        learned_skills = self.skills.get(id(part)) if one.name == SKILLS else None
        solver = learned_skills or one.fitter(part.history, seed=part.seeds[0])
        replays = part.subject.replay_pool
        questions = {task.id: task.question for task in part.tasks.tasks if not task.private}
        learned = describe_fitted(
            one.name, solver, part.history, pool=part.subject.pool, questions=questions
        )
        kept.append(learned)
        self._fitted_file.add(key, learned)
        if isinstance(solver, Cascade) and solver.checker is not None:
            solver = replace(solver, checker=self.checkers.get(id(part), solver.checker))
        if isinstance(solver, Cascade) and id(part) in self.executed:
            solver = replace(solver, executed=self.executed[id(part)])
        fitted_system = replace(
            one, solver=adapt_to_record(solver, replays.record) if replays else solver
        )
        return tuple(replace(trial, system=fitted_system) for trial in found)

    async def _run_planned(
        self, planned: Sequence[EvalTrial], on_result: Callable[[str], None]
    ) -> tuple[TrialResult, ...]:
        grade = self.parts[0].tasks.grade
        found = await run_trials(
            planned, grade, result_log=self.result_log, options=self.options, on_result=on_result
        )
        self.unasked += len(planned) - len(found)
        return found

    def strengths(self) -> dict[WorkerId, float | None]:
        """Return `Evaluation.strengths`."""
        if not self._is_calibrated:
            return {}
        found: dict[WorkerId, float | None] = {}
        for worker in self.parts[0].subject.pool:
            own = [part.subject.pool[worker.id].strength for part in self.calibrated_parts]
            found[worker.id] = mean_or_none([strength for strength in own if strength is not None])
        return found

    async def equalise(self, name: str, what: EqualResource) -> MatchedBudget | None:
        """Measure self-consistency and best-of-N with that system's budget, and return the budget.

        None if the budget is unknown, or takes more than `MOST_SAMPLES`; then neither is measured.
        """
        budget = await self._matched_budget(name, what)
        if budget is None:
            return None
        replays = self.parts[0].subject.replay_pool
        k = budget.k if replays is None else min(budget.k, replays.record.scores_qms.shape[2])
        subject = self.parts[0].subject
        methods = (f"self-consistency@{k}", f"best-of-{k}")
        if replays is not None and not replays.simulate:
            methods = methods[:1]
        if k > MOST_SAMPLES:
            why = f"{name} takes as much as more than {MOST_SAMPLES} samples of the best worker"
            self.left_out |= dict.fromkeys(methods, why)
            return None
        for method in methods:
            await self.measure(find_system(method, subject))
        return replace(budget, k=k)

    async def _matched_budget(self, name: str, what: EqualResource) -> MatchedBudget | None:
        """Return the budget of that system; None if it is unknown."""
        scored = [run for run in self.results[name] if run.unscored != "outage"]
        if what == "calls":
            return match_calls(name, scored)
        if not scored:
            return None
        await self.measure(find_system(BEST_SINGLE, self.parts[0].subject))
        best_runs = self.results.get(BEST_SINGLE, ())  # none if the budget is spent
        single = [run for run in best_runs if run.unscored != "outage"]
        return match_cost(name, scored, single)

    async def _calibrate(self) -> None:
        """Measure every worker alone on the calibration questions, once."""
        if self._is_calibrated:
            return
        for index, part in enumerate(self.parts):
            if part.history is None and part.tasks.calibration:
                self.calibrated_parts[index] = await self._calibrate_part(part)
        self._is_calibrated = any(part.history is not None for part in self.calibrated_parts)

    async def _calibrate_checkers(self) -> None:
        """Measure the checkers' rates on the calibration questions, once."""
        for part in self.calibrated_parts:
            subject = part.subject
            if id(part) in self.checkers or subject.replay_pool or not part.tasks.calibration:
                continue
            context = subject.solver_context()
            self.checkers[id(part)], _ = await calibrate_checker(
                Checker(),
                part.tasks.calibration,
                context,
                part.tasks.grade,
                seed=part.seeds[0],
                concurrency=self.options.concurrency,
            )

    async def _learn_skills(self, one: System) -> None:
        """Learn a handbook on each part, once, unless the system's runs on it are all done."""
        for part in self.calibrated_parts:
            done = all(self.result_log.is_done(trial.key) for trial in self._plan_keys(one, part))
            if id(part) not in self.skills and part.history is not None and not done:
                self.skills[id(part)] = await learn_skills(
                    part, part.history, concurrency=self.options.concurrency
                )

    async def _calibrate_tests(self) -> None:
        """Measure the rates of the questions' own tests on the known answers, once."""
        for part in self.calibrated_parts:
            if id(part) not in self.executed and part.subject.run_tests and part.history:
                self.executed[id(part)] = await calibrate_tests(
                    EXECUTED_TESTS, part.history, part.subject.run_tests
                )

    def _plan_calibration(self, part: EvalPart) -> dict[WorkerId, tuple[EvalTrial, ...]]:
        """Plan the trials of each single worker on the calibration questions."""
        terms = replace(self.options, seeds=part.seeds[:1], sub_pool=None)
        tasks = [(task, part.tasks.family(task)) for task in part.tasks.calibration]
        return {
            worker.id: plan_trials(calibration_system(worker.id), tasks, part.subject, terms)
            for worker in part.subject.pool
        }

    async def _calibrate_part(self, part: EvalPart) -> EvalPart:
        """Measure the part's workers; return the part with their strengths and outcomes."""
        by_worker = self._plan_calibration(part)
        alone = {worker: calibration_system(worker) for worker in by_worker}
        planned = [trial for own in by_worker.values() for trial in own]
        step = self.bar("calibration", len(planned))
        ran = await self._run_planned(planned, lambda _: step())
        found = {(run.system, run.task): run for run in ran}
        history = measured_history(
            part.tasks.calibration,
            tuple(alone),
            lambda worker, task: found.get((alone[worker].name, task.id)),
            part.tasks.family,
        )
        strengths = {
            worker: mean_or_none(
                [r.score for r in ran if r.system == one.name and r.score is not None]
            )
            for worker, one in alone.items()
        }
        pool = Pool(tuple(replace(w, strength=strengths[w.id]) for w in part.subject.pool))
        return replace(part, subject=replace(part.subject, pool=pool), history=history)
