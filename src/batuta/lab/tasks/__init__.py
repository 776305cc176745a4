"""Tasks and their grading: data sets, recorded answers, and graders."""

RECORDED_PREFIX = "recorded:"
"""The prefix of the name of a recorded set."""
