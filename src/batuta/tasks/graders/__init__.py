"""Judges of answers: one grade serves as reward and as score; undecided is no score, never 0."""

from batuta.tasks.graders.choice import ChoiceGrader
from batuta.tasks.graders.code import CodeCase, CodeGrader, CodeRunner, RunnableProgram
from batuta.tasks.graders.comparison_pool import ComparisonResult, MathsPool
from batuta.tasks.graders.exact import ExactGrader
from batuta.tasks.graders.freeform import FreeFormGrader
from batuta.tasks.graders.integer import IntegerGrader
from batuta.tasks.graders.judge import RUBRIC, JudgeFallbackGrader, JudgeGrade, JudgeGrader
from batuta.tasks.graders.maths import MathsGrader
from batuta.tasks.graders.registry import GraderRegistry
from batuta.tasks.graders.safe_grading import grade_answer
from batuta.tasks.graders.schema import JsonSchemaGrader

__all__ = [
    "RUBRIC",
    "ChoiceGrader",
    "CodeCase",
    "CodeGrader",
    "CodeRunner",
    "ComparisonResult",
    "ExactGrader",
    "FreeFormGrader",
    "GraderRegistry",
    "IntegerGrader",
    "JsonSchemaGrader",
    "JudgeFallbackGrader",
    "JudgeGrade",
    "JudgeGrader",
    "MathsGrader",
    "MathsPool",
    "RunnableProgram",
    "grade_answer",
]
