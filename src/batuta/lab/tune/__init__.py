"""Finds the best workflows over a pool of workers, within a stated budget and without a GPU.

`tuning.run_tuning` calibrates the workers, searches for workflows, builds a selector of workflows,
and judges the result on held-out questions.
"""
