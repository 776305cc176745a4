"""Records: answers of real models that can be replayed as a pool."""

from batuta.lab.tasks.recorded.catalog import RECORDED_NAMES, RECORDED_SETS, load_recorded
from batuta.lab.tasks.recorded.outcomes import (
    GRADER,
    RecordedOutcomes,
    RecordedUsage,
    plurality_credit,
    rank_models,
    reference_scores,
)
from batuta.lab.tasks.recorded.own import PACKAGED_RECORDS, find_outcomes_file, read_own_record
from batuta.lab.tasks.recorded.replay import SIMULATED_PREFIX, ReplayPool
from batuta.lab.tasks.recorded.split import QuestionSplit, random_split, unseen_family_split

__all__ = [
    "GRADER",
    "PACKAGED_RECORDS",
    "RECORDED_NAMES",
    "RECORDED_SETS",
    "SIMULATED_PREFIX",
    "QuestionSplit",
    "RecordedOutcomes",
    "RecordedUsage",
    "ReplayPool",
    "find_outcomes_file",
    "load_recorded",
    "plurality_credit",
    "random_split",
    "rank_models",
    "read_own_record",
    "reference_scores",
    "unseen_family_split",
]
