"""Tasks and their grading: data sets, recorded answers, and graders."""

RECORDED_PREFIX = "recorded:"
"""The prefix of a recorded set's name."""
