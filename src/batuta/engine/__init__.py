"""The engine: plans and executes workflows, accounts for every call, and records the Run."""

from batuta.engine.context import Recorder, RunHooks, RunSettings, TimeoutPolicy
from batuta.engine.resumption import find_asking_run, find_resume_state, strip_prompts
from batuta.engine.run_loop import conduct, new_run_id
from batuta.engine.workflow_estimate import LatencyLookup, estimate_workflow

__all__ = [
    "LatencyLookup",
    "Recorder",
    "RunHooks",
    "RunSettings",
    "TimeoutPolicy",
    "conduct",
    "estimate_workflow",
    "find_asking_run",
    "find_resume_state",
    "new_run_id",
    "strip_prompts",
]
