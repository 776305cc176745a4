"""Trains a conductor's policy: SFT warm-up, distilling, rejection sampling and GRPO.

This is the only package that imports torch at import time.
"""
