"""Trains conductors, by SFT warm-up, distilling, rejection sampling and GRPO, and selectors.

Besides three routers of the baselines, only this package imports torch.
"""
