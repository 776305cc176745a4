"""Subtasks are rewritten within the budget, and a better wording is found and kept."""

import re

import pytest

pytest.importorskip("gepa")

from batuta.clients import ScriptedClient
from batuta.core import Pool, Worker, WorkerId
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole, write_workflow
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.rewriting import Rewriting, copies_a_question, rewrite_candidate
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.stages import TuneStage
from batuta.lab.tune.tuning import run_tuning
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import CHECKS, PRICE, World, grade, roll, truth

MAGIC = "carry the digits"
"""What a checker must be told so that it mends what it reads."""
WORLD = World("rewriting", {"ada": 0.4, "ben": 0.35}, check={"ada": 0.3, "ben": 0.3})


class Rewriters:
    """The world's workers; a checker who is told the right thing mends nearly everything."""

    def __init__(self, proposal=f"```\nCheck it, {MAGIC}, and give the final answer.\n```"):
        self.proposal = proposal
        self.prompts = []

    def clients(self):
        return {
            w: ScriptedClient(lambda r, w=w: self.answer(w, r.messages[-1].text), price=PRICE)
            for w in WORLD.workers
        }

    def answer(self, worker, prompt):
        if prompt.startswith("Several language models"):
            self.prompts.append(prompt)
            return self.proposal
        order = prompt.rpartition("Your assigned subtask: ")[2]
        if MAGIC in order:
            question = re.search(r"<overall_task>\n(.*?)\n</overall_task>", prompt, re.DOTALL)[1]
            if roll("magic", question) < 0.97:
                return f"Answer: {truth(question)}"
        return WORLD.answer(worker, prompt)


def open_runner(rewriters):
    pool = Pool(tuple(Worker(id=WorkerId(w), model=w, price=PRICE) for w in WORLD.workers))
    meter = CallMeter(ASSUMED_PRICE)
    return CandidateRunner(pool, rewriters.clients(), grade, meter, unknown=ASSUMED_PRICE)


ADA, BEN = WORLD.workers
PAIR = Candidate((CandidateStep(StepRole.SOLVE, ADA), CandidateStep(StepRole.CHECK, BEN)))


async def rewrite(rewriters, most=2000):
    runner, tasks = open_runner(rewriters), WORLD.tasks(60)
    given = Rewriting(
        runner=runner,
        rewriter=ADA,
        train=tasks[:30],
        validation=tasks[30:],
        fits_budget=lambda calls: runner.meter.calls + calls <= most,
        rounds=4,
    )
    return await rewrite_candidate(PAIR, given), runner


async def test_a_wording_that_is_better_is_found_by_reflecting_on_what_was_wrong():
    rewriters = Rewriters()
    found, runner = await rewrite(rewriters)
    assert MAGIC in found.steps[1].text and found.steps[0] == PAIR.steps[0]
    assert write_workflow(found).steps[1].subtask == found.steps[1].text
    assert "The final answer was wrong. The right answer is" in rewriters.prompts[0]
    again, other = await rewrite(Rewriters())
    assert again == found and other.meter.calls == runner.meter.calls


@pytest.mark.parametrize("proposal", ["", "```\n```", "x" * 5000, "Answer: 7"])
async def test_a_proposal_that_is_no_use_changes_nothing(proposal):
    found, _ = await rewrite(Rewriters(proposal))
    assert found == PAIR


@pytest.mark.parametrize("most", [0, 1, 40, 75, 120])
async def test_it_keeps_to_its_money(most):
    _, runner = await rewrite(Rewriters(), most)
    assert runner.meter.calls <= most


def test_a_wording_that_knows_a_question_by_heart_is_told_apart():
    tasks = CHECKS.tasks(3)
    assert copies_a_question(f"If asked: {tasks[1].question.upper()} say 12.", tasks)
    assert not copies_a_question("Add up what is billed and name the total.", tasks)


@pytest.mark.long
async def test_in_a_tuning_the_nominee_has_the_better_wording():
    runner = open_runner(Rewriters())
    told = []
    context = TuneContext(
        parts=split_questions(WORLD.tasks(400), task_family),
        family=task_family,
        runner=runner,
        settings=TuneSettings(
            allowance=Allowance(calls=3000),
            rewrites=True,
            rewriter=ADA,
            groups=1,
            levels=1,
            last=TuneStage.REWRITE,
        ),
        used_minutes=lambda: 0.0,
        report=lambda stage, said: told.append((stage, said)),
    )
    result = await run_tuning(context)
    assert runner.meter.calls <= 3000 and told[-1][0] is TuneStage.REWRITE
    assert result.rewritten.kept and result.rewritten.gain > 0.1, told[-1]
    workflows_in_use = result.nominees["ultra"].workflows_in_use
    assert any(MAGIC in step.text for one in workflows_in_use for step in one.steps)
