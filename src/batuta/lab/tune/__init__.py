"""Learns how a pool is best conducted, for a stated budget and without a GPU.

Calibrate the workers, search for workflows, choose a selector among them, judge the choice on
questions kept back: `tuning.run_tuning` does it all.
"""
