"""A forward pass that reads each distinct prompt once for all of its completions.

A group's completions share their prompt, which is more than half of the tokens, so the prompt's
keys and values are computed once and used by every completion, with gradients. The results are the
same. The pass works with any causal language model of transformers that uses a `DynamicCache`.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

BATCH_PARTS = 4
"""Maximum number of parts into which a batch is split by length, to need little padding."""
LEAST_ROWS = 8
"""A batch has at most one part for every so many rows, as products of a few rows are slow."""


def pad_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return token ids and attention mask, both (B, P + T), and T.

    Prompts are padded on the left to the longest, P tokens, and completions on the right to T.
    """
    before, after = max(map(len, prompts)), max(map(len, completions))
    ids = torch.full((len(prompts), before + after), pad)
    mask = torch.zeros_like(ids)
    for at, (prompt, row) in enumerate(zip(prompts, completions, strict=True)):
        where = slice(before - len(prompt), before + len(row))
        ids[at, where] = torch.tensor([*prompt, *row])
        mask[at, where] = 1
    return ids, mask, after


def completion_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    *,
    temperature: float = 1.0,
    compute_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probabilities (B, T) and entropies (B, T) of the completions' tokens, in nats.

    `input_ids` is (B, P + T): left-padded prompts, then right-padded completions (T =
    `logits_to_keep`). The mask is 1 where there is a token; padding has the results 0. Without
    `compute_entropy` the entropies are None.
    """
    # columns on the left that are padding in every row are dropped
    padding = int(attention_mask.any(0).int().argmax())
    input_ids, attention_mask = input_ids[:, padding:], attention_mask[:, padding:]
    prompts_BP = input_ids[:, :-logits_to_keep]
    prompt_mask_BP = attention_mask[:, :-logits_to_keep]
    unique_QP, which_B = torch.unique(prompts_BP, dim=0, return_inverse=True)
    first_Q = torch.stack([(which_B == q).nonzero()[0, 0] for q in range(len(unique_QP))])
    cache: Any = DynamicCache()
    core, head = model.get_decoder(), model.get_output_embeddings()
    core(
        unique_QP[:, :-1],
        attention_mask=prompt_mask_BP[first_Q][:, :-1],
        cache=cache,
        use_cache=True,
    )
    written_BT = attention_mask[:, -logits_to_keep:].bool()
    logps_BT = input_ids.new_zeros(written_BT.shape, dtype=torch.float32)
    entropies_BT = torch.zeros_like(logps_BT)
    lengths_B = written_BT.sum(1)
    for rows in lengths_B.argsort().chunk(min(BATCH_PARTS, -(-len(lengths_B) // LEAST_ROWS))):
        most = max(1, int(lengths_B[rows].max()))
        ids = input_ids[rows, -logits_to_keep - 1 :][:, : most + 1]
        mask = torch.cat([prompt_mask_BP[rows], written_BT[rows, :most].long()], 1)[:, :-1]
        mine = DynamicCache()
        for number, layer in enumerate(cache.layers):
            mine.update(layer.keys[which_B[rows]], layer.values[which_B[rows]], number)
        hidden = core(
            ids[:, :-1], attention_mask=mask, cache=mine, use_cache=True
        ).last_hidden_state
        written = written_BT[rows, :most]
        logps_NV = torch.log_softmax(head(hidden[written]).float() / temperature, -1)
        chosen_N = logps_NV.gather(-1, ids[:, 1:][written][:, None]).squeeze(-1)
        at = torch.zeros_like(written_BT[rows])
        at[:, :most] = written
        logps_BT = logps_BT.index_add(0, rows, _scatter_values(at, chosen_N))
        if compute_entropy:
            entropies_N = -(logps_NV.exp() * logps_NV).sum(-1)
            entropies_BT = entropies_BT.index_add(0, rows, _scatter_values(at, entropies_N))
    return logps_BT, entropies_BT if compute_entropy else None


def _scatter_values(at_BT: torch.Tensor, values_N: torch.Tensor) -> torch.Tensor:
    """Return the values at the positions where `at_BT` is true, 0 elsewhere."""
    return values_N.new_zeros(at_BT.shape).masked_scatter(at_BT, values_N)
