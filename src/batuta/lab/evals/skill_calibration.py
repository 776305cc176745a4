"""Learning of SkillOrchestra's skills, by calls of the pool's best model."""

from __future__ import annotations

from batuta.conductors import best_single_worker
from batuta.core import Question, Sampling, user_message
from batuta.engine.solver import SolverContext, run_conductor
from batuta.errors import ConfigError
from batuta.lab.baselines.routing.skill_learning import learn_handbook
from batuta.lab.baselines.routing.skill_orchestra import NAME, SkillOrchestra
from batuta.lab.evals.evaluation import EvalPart
from batuta.lab.learners.history import History

_SAMPLING = Sampling(temperature=0, max_tokens=2048)


async def learn_skills(part: EvalPart, history: History, *, concurrency: int) -> SkillOrchestra:
    """Return the method with a handbook of what the pool's workers did on other questions.

    The best model of the pool names the skills, labels the questions, and is asked which skills
    each question needs. What learning costs is paid like calibration, and is in no run.

    Raises:
        ConfigError: there is no model in the pool, or it names no skill.
    """
    subject, seed = part.subject, part.seeds[0]
    models = [worker.id for worker in subject.pool.ranked() if worker.is_model]
    if not models:
        raise ConfigError(f"{NAME} asks a model which skills questions need: the pool has none")
    context = SolverContext(
        pool=subject.pool, clients=subject.clients_for_run(), limits=subject.limits
    ).restrict_to(models[0])

    async def ask(prompt: str) -> str:
        question = Question(messages=(user_message(prompt),), sampling=_SAMPLING)
        run = await run_conductor(question, best_single_worker(), context, seed)
        return run.answer or ""

    handbook = await learn_handbook(history, ask, seed=seed, concurrency=concurrency)
    return SkillOrchestra(handbook=handbook, orchestrator=models[0])
