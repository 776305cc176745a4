"""Finds out how a pool is best conducted, within a stated budget and without a GPU.

`tuning.run_tuning` calibrates the workers, searches for workflows, fits a selector among them, and
judges the result on held-out questions.
"""
