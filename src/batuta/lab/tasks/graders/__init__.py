"""Graders of answers. A grade's score is also the reward; if undecided it is None, not 0."""

from batuta.lab.tasks.graders.choice import ChoiceGrader
from batuta.lab.tasks.graders.code import CodeGrader
from batuta.lab.tasks.graders.comparison_pool import ComparisonResult, MathsPool
from batuta.lab.tasks.graders.exact import ExactGrader
from batuta.lab.tasks.graders.freeform import FreeFormGrader
from batuta.lab.tasks.graders.integer import IntegerGrader
from batuta.lab.tasks.graders.judge import JudgeFallbackGrader, JudgeGrade, JudgeGrader
from batuta.lab.tasks.graders.maths import MathsGrader
from batuta.lab.tasks.graders.registry import GraderRegistry, grade_answer
from batuta.lab.tasks.graders.schema import JsonSchemaGrader

__all__ = [
    "ChoiceGrader",
    "CodeGrader",
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
    "grade_answer",
]
