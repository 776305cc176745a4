"""Tasks and their grading: data sets, recorded answers, and graders."""
