"""The laboratory: tasks, baselines, evaluation, tuning, training. No server imports it."""
