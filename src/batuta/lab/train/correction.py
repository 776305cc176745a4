"""Importance-sampling correction between vLLM's and the trainer's probabilities.

vLLM samples with its own kernels, so it gives a token a slightly different probability than the
trainer. TRL weights the loss by the ratio of the two; this module translates the settings into
TRL's options, and counts the ratios that exceed the limit.
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
    """Return a tensor of two counts: the ratios above the limit, and all ratios.

    `learned_BT` has the trainer's log-probabilities in nats, and `sampled_BT` the engine's, NaN
    where the engine reported none. `mask_BT` is 1 where a completion has a token. With `whole`
    there is one ratio for each completion, and TRL masks a completion above the limit; otherwise
    there is one for each token, and TRL truncates a ratio to the limit.
    """
    on_BT = mask_BT.bool()
    diff_BT = torch.nan_to_num((learned_BT - sampled_BT) * mask_BT, nan=0.0)
    ratios = diff_BT.sum(-1).exp() if whole else diff_BT.exp()[on_BT]
    return torch.stack([(ratios > limit).sum(), torch.tensor(ratios.numel()).to(ratios.device)])
