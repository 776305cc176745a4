"""Correction for an inference engine whose probabilities differ slightly from the trainer's.

vLLM samples with its own kernels, so a token's probability there differs slightly from the one used
for the gradient. TRL weights the loss by the ratio of the two; this module translates its options,
and reports the share of a step that its limit affects.
"""

from __future__ import annotations

from typing import Any

import torch

from batuta.lab.train.settings import OptimiserSettings

_MODES = {"token": "token_truncate", "sequence": "sequence_mask"}
"""TRL's name for each correction."""


def correction_options(o: OptimiserSettings) -> dict[str, Any]:
    """Return the correction as TRL's options."""
    if o.correction == "none":
        return {"vllm_importance_sampling_correction": False}
    return {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": _MODES[o.correction],
        "vllm_importance_sampling_clip_max": o.correction_limit,
    }


def count_beyond_limit(
    learned_BT: torch.Tensor,
    sampled_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    whole: bool,
    limit: float,
) -> torch.Tensor:
    """Count the ratios above the limit, and all ratios: a tensor of two numbers.

    Log-probabilities are in nats; those of the engine are NaN where it reported none. The mask is 1
    where a completion has a token. With `whole` the ratios are those of whole completions, which
    TRL masks above the limit; otherwise those of tokens, which it truncates to the limit.
    """
    on_BT = mask_BT.bool()
    diff_BT = torch.nan_to_num((learned_BT - sampled_BT) * mask_BT, nan=0.0)
    ratios = diff_BT.sum(-1).exp() if whole else diff_BT.exp()[on_BT]
    return torch.stack([(ratios > limit).sum(), torch.tensor(ratios.numel()).to(ratios.device)])
