"""Trains a conductor's policy: SFT warm-up, distilling, rejection sampling and GRPO.

Besides three routers of the baselines, only this package imports torch.
"""
