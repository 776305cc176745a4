"""The last step answers in the question's form."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import LLMConductor
from batuta.core import Plan, PlanningContext, Pool, Question, Step, Worker, WorkerId, Workflow
from batuta.core.worker import PROGRAM
from batuta.language import PromptOptions
from batuta.language.answer_form import (
    ANSWER_FROM_OUTPUT,
    answer_after_program,
    ask_single_plainly,
    lists_options,
)

A, B, P = WorkerId("a"), WorkerId("b"), WorkerId("p")
POOL = Pool(
    (
        Worker(id=A, model="m"),
        Worker(id=B, model="n"),
        Worker(id=P, model="python", tags=(PROGRAM,)),
    )
)
CHOICE = "Which one floats?\nOptions:\n(A) iron\n(B) oak\n(C) lead"
CODE = "Write a Python function that counts the vowels of a text."
DOCSTRING = 'def count(text: str) -> int:\n    """Count the vowels."""\n'
NUMBER = "Lena packs 12 boxes of 8 pears and sells 30 pears. How many are left?"


def flow(*steps):
    return Workflow(tuple(Step(subtask=text, worker=who, access=read) for text, who, read in steps))


RUN_LAST = flow(("Write a program.", B, ()), ("Run it.", P, (0,)))


@pytest.mark.parametrize("question", [CHOICE, CODE, DOCSTRING])
def test_a_model_answers_where_a_programs_output_does_not(question):
    ended = answer_after_program(RUN_LAST, POOL, question, 5)
    assert ended.steps[:2] == RUN_LAST.steps
    assert ended.steps[2] == Step(subtask=ANSWER_FROM_OUTPUT, worker=B, access=(0, 1))


def test_a_program_may_end_a_question_that_its_output_answers():
    assert answer_after_program(RUN_LAST, POOL, NUMBER, 5) == RUN_LAST


def test_no_step_is_added_beyond_the_limit_or_where_a_model_ends():
    assert answer_after_program(RUN_LAST, POOL, CHOICE, 2) == RUN_LAST
    spoken = flow(*((s.subtask, s.worker, s.access) for s in RUN_LAST.steps), ("Say it.", A, (1,)))
    assert answer_after_program(spoken, POOL, CHOICE, 5) == spoken
    alone = flow(("```python\nprint(1)\n```", P, ()))
    assert answer_after_program(alone, POOL, CHOICE, 5) == alone


def test_a_model_that_is_called_alone_is_asked_plainly():
    assert ask_single_plainly(flow(("Identify the pronoun.", A, ())), POOL) == flow(("", A, ()))
    assert ask_single_plainly(RUN_LAST, POOL) == RUN_LAST
    program = flow(("```python\nprint(1)\n```", P, ()))
    assert ask_single_plainly(program, POOL) == program


@pytest.mark.parametrize(
    ("question", "lists"),
    [
        (CHOICE, True),
        ("Pick:\nA. one\nB. two", True),
        ("Pick:\n- A) one\n- B) two", True),
        ("A. Smith wrote it. Who was he?", False),
        ("Compare:\n(B) oak\n(C) lead", False),
        ("Solve x^2 = 4.", False),
    ],
)
def test_options_are_lines_that_begin_with_letters(question, lists):
    assert lists_options(question) is lists


class TestConductor:
    """What a prompted conductor drafts is amended; what was trained is not."""

    async def planned(self, draft, question, **shown):
        conductor = LLMConductor(
            name="c", client=ScriptedClient(lambda _: draft), rendering=PromptOptions(**shown)
        )
        context = PlanningContext(question=Question.of(question), pool=POOL)
        plan = await conductor.plan(context)
        assert isinstance(plan, Plan)
        return plan.workflow

    async def test_a_small_conductors_single_step_is_the_question_itself(self):
        draft = 'model_id = [0]\nsubtasks = ["Identify the pronoun."]\naccess_list = [[]]'
        assert (await self.planned(draft, CHOICE, brief=True)).steps[0].subtask == ""
        kept = await self.planned(draft, CHOICE)
        assert kept.steps[0].subtask == "Identify the pronoun."

    @pytest.mark.parametrize("brief", [True, False])
    async def test_a_prompted_conductors_program_is_followed_by_an_answer(self, brief):
        draft = 'model_id = [1, 2]\nsubtasks = ["Write it.", "Run it."]\naccess_list = [[], [0]]'
        assert len(await self.planned(draft, CHOICE, brief=brief)) == 3
        assert len(await self.planned(draft, NUMBER, brief=brief)) == 2

    async def test_a_trained_conductor_is_taken_at_its_word(self):
        draft = (
            'model_id = ["b", "p"]\nsubtasks = ["Write it.", "Run it."]\naccess_list = [[], [0]]'
        )
        assert len(await self.planned(draft, CHOICE, compact=True)) == 2
