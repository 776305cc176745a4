"""Finds the best way to conduct a pool, within a stated budget and without a GPU.

`tuning.run_tuning` calibrates the workers, searches for workflows, builds a selector of workflows,
and judges the result on held-out questions.
"""
