"""The laboratory: tasks, baselines, evaluation, tuning, training.

The server does not import it; it loads parts of it by their entry points.
"""
