"""Judges of answers: one grade serves as reward and as score; undecided is no score, never 0."""

from batuta.tasks.graders.boundary import grade_answer
from batuta.tasks.graders.choice import Choice
from batuta.tasks.graders.code import Case, Code, Ready, Runner
from batuta.tasks.graders.exact import Exact
from batuta.tasks.graders.freeform import FreeForm
from batuta.tasks.graders.integer import Integer
from batuta.tasks.graders.judge import RUBRIC, Judge, Judged, Referred
from batuta.tasks.graders.maths import Maths
from batuta.tasks.graders.pool import MathsPool, Verdict
from batuta.tasks.graders.registry import Graders
from batuta.tasks.graders.schema import JsonSchema

__all__ = [
    "RUBRIC",
    "Case",
    "Choice",
    "Code",
    "Exact",
    "FreeForm",
    "Graders",
    "Integer",
    "JsonSchema",
    "Judge",
    "Judged",
    "Maths",
    "MathsPool",
    "Ready",
    "Referred",
    "Runner",
    "Verdict",
    "grade_answer",
]
