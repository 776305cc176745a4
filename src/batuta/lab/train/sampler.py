"""Sampling from a small policy with one prefill per question, shared by its whole group.

Generation dominates training, above all on a CPU. A group's completions continue the same prompt,
so its keys and values are computed once and shared: attention scores against them are one matrix
product per question, and only the completions' own keys are stored per row. Rows get copies of the
prompt's keys only once other rows are dropped. The sampler supports Qwen2 and Llama, which have
the same layers; transformers samples from other architectures.

Axes: Q prompts, P tokens of a prompt, B rows (completions), T tokens of a completion, D hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, GenerationConfig, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import rotate_half

from batuta.lab.train.device import linear_weights
from batuta.language.parser import is_complete_draft

OWN_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
"""Model types that our own sampler supports, and their classes."""
_LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Types of rotary embeddings that depend on the length of the whole text."""
_TOLERANCE, _NARROW_TOLERANCE = 1e-3, 5e-2
"""Tolerances of logits in fp32 and bf16, relative to the largest logit if it is above 1."""
_CLOSING = re.compile(r"[\]}]")
"""Matches a closing bracket, which the last token of a draft contains."""
_THOUGHT = re.compile(r"<think(?:ing)?>\s*\Z", re.IGNORECASE)
"""Matches the end of a prompt that opens a hidden thought for the policy."""
_THOUGHT_TOKENS = 12
"""Number of tokens at a prompt's end in which an opened thought is searched for."""
COMPACT_SHARE = 0.25
"""Share of ended rows above which they are dropped from the batch."""


class ListEndDetector:
    """Detects when a draft is complete; later text is not parsed.

    Without this check an entropy bonus would reward any text after the draft.
    """

    def __init__(self, tokenizer: Any, size: int | None = None) -> None:
        """Find the tokens with a closing bracket, as only these can end a draft.

        Args:
            tokenizer: the policy's tokenizer.
            size: the size of the policy's vocabulary, which often has unused tokens beyond those of
                the tokenizer; None: the number of the tokenizer's tokens.
        """
        texts: list[str] = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        texts += [""] * ((size or 0) - len(texts))
        self._may_end = torch.tensor([bool(_CLOSING.search(text)) for text in texts])
        self._tokenizer = tokenizer

    def opened_thought(self, prompt: Sequence[int]) -> str:
        """Return the tag that opens a hidden thought at the prompt's end; empty if none does."""
        found = _THOUGHT.search(self._tokenizer.decode(list(prompt[-_THOUGHT_TOKENS:])))
        return found[0] if found else ""

    def is_closed(self, written_BT: Tensor, opened_thoughts: Sequence[str]) -> Tensor:
        """Return a mask (B,): whether the last token of each row completes its draft.

        `written_BT` are the tokens of the rows so far; `opened_thoughts` is the thought tag at the
        end of each row's prompt, or an empty string.
        """
        closed_B = self._may_end[written_BT[:, -1]]
        for row in closed_B.nonzero().flatten().tolist():
            draft = self._tokenizer.decode(written_BT[row].tolist(), skip_special_tokens=True)
            closed_B[row] = is_complete_draft(opened_thoughts[row] + draft)
        return closed_B


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Set eval mode within the block, as checkpointing disables the KV cache in training mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def narrow_weights(model: torch.nn.Module) -> Iterator[None]:
    """Store the matrices of linear layers in autocast's precision within the block.

    Autocast would convert them again for every sampled token, which takes longer than the matrix
    products. The results are the same. A matrix that is tied to the embedding table stays in fp32,
    as embeddings are read in fp32. Without autocast nothing changes.
    """
    device: str = next(model.parameters()).device.type
    if not torch.is_autocast_enabled(device):
        yield
        return
    matrices = linear_weights(model)
    wide = [weight.data for weight in matrices]
    try:
        for weight in matrices:
            weight.data = weight.data.to(torch.get_autocast_dtype(device))
        yield
    finally:
        for weight, data in zip(matrices, wide, strict=True):
            weight.data = data


class Sampler:
    """Samples completions of a Qwen2 or Llama with the model's weights at that moment."""

    def __init__(
        self,
        model: Qwen2ForCausalLM,
        *,
        pad: int,
        end: int,
        end_detector: ListEndDetector | None = None,
    ) -> None:
        """Create a sampler; `pad` and `end` are the ids of the padding and the end token.

        Without `end_detector` a completion ends only with the end token.
        """
        self._model = model
        self._pad = pad
        self._end = end
        self._end_detector = end_detector

    @classmethod
    def for_workflows(cls, model: Qwen2ForCausalLM, tokenizer: Any) -> Self:
        """Return a sampler of workflow drafts, which stops each draft once it is complete."""
        pad, end = int(tokenizer.pad_token_id), int(tokenizer.eos_token_id)
        detector = ListEndDetector(tokenizer, int(model.config.vocab_size))
        return cls(model, pad=pad, end=end, end_detector=detector)

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        *,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Sample `group` completions of every prompt.

        Args:
            prompts: the token ids of each prompt.
            group: the number of completions of each prompt.
            max_tokens: the maximum number of tokens of a completion, the end token included.
            temperature: the sampling temperature; 0 takes the most likely token.
            generator: the random number generator, on the CPU.

        Returns:
            The token ids of each completion, one group after another. A completion that ended
            before `max_tokens` has an end token, also if the detector ended it.
        """
        with eval_mode(self._model), narrow_weights(self._model):
            decoding = _Decoding(
                self._model, prompts, pad=self._pad, group=group, max_tokens=max_tokens
            )
            detector = self._end_detector
            each = [detector.opened_thought(one) if detector else "" for one in prompts]
            opened_thoughts = [thought for thought in each for _ in range(group)]
            return self._decode(
                decoding, opened_thoughts, max_tokens, temperature, generator=generator
            )

    def _decode(
        self,
        decoding: _Decoding,
        opened_thoughts: Sequence[str],
        max_tokens: int,
        temperature: float,
        *,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Sample a token of every row at a time until all rows have ended."""
        written = torch.full((len(decoding.lengths_B), max_tokens), self._end)
        rows = torch.arange(len(written))
        logits = decoding.first
        over = torch.zeros(len(rows), dtype=torch.bool)
        for at in range(max_tokens):
            chosen = _sample_tokens(logits, temperature, generator).cpu()
            chosen = chosen.masked_fill(over, self._end)
            written[rows, at] = chosen
            over |= chosen == self._end
            if self._end_detector is not None:
                opened = [opened_thoughts[int(row)] for row in rows]
                over |= self._end_detector.is_closed(written[rows, : at + 1], opened)
            if at == max_tokens - 1 or over.all():
                break
            if over.float().mean() > COMPACT_SHARE:
                unfinished = ~over
                decoding.keep(unfinished)
                rows, chosen, over = rows[unfinished], chosen[unfinished], over[unfinished]
            logits = decoding.step(chosen, at)
        return [_truncate_at_end(row, (self._end,)) for row in written.tolist()]


@dataclass(frozen=True, slots=True)
class GenerateSampler:
    """Samples completions of any causal language model with transformers' `generate`."""

    model: Any
    tokenizer: Any

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        *,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Sample as `Sampler.sample` does, but read a prompt again for each of its completions.

        torch's global generator is seeded from `generator`.
        """
        found: list[list[int]] = []
        ends = end_tokens(self.model, self.tokenizer)
        asked = GenerationConfig(
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0,
            max_new_tokens=max_tokens,
            num_return_sequences=group,
            pad_token_id=int(self.tokenizer.pad_token_id),
            eos_token_id=sorted(ends),
        )
        with eval_mode(self.model), plain_generation(self.model):
            for prompt in prompts:
                torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
                ids = torch.tensor([list(prompt)], device=self.model.device)
                rows = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=asked
                )
                found += [_truncate_at_end(row, ends) for row in rows[:, len(prompt) :].tolist()]
        return found


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the tokens that end a completion: those of the tokenizer and of the model."""
    eos: Any = model.generation_config.eos_token_id
    own: list[int] = [] if eos is None else eos if isinstance(eos, list) else [eos]
    return {int(tokenizer.eos_token_id), *own}


def drop_generation_settings(model: Any) -> None:
    """Reset the model's generation_config to its special tokens.

    `generate` takes options from there that its caller does not set: top-p, penalties, suppressed
    tokens. The loss does not account for these.
    """
    kept: Any = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=kept.bos_token_id,
        eos_token_id=kept.eos_token_id,
        pad_token_id=kept.pad_token_id,
    )


@contextmanager
def plain_generation(model: Any) -> Iterator[None]:
    """Sample from the model's plain distribution within the block."""
    kept: Any = model.generation_config
    drop_generation_settings(model)
    try:
        yield
    finally:
        model.generation_config = kept


def open_sampler(model: Any, tokenizer: Any) -> Sampler | GenerateSampler:
    """Return our own sampler if it supports the model, else that of transformers."""
    if own_sampler_problem(model) is None:
        return Sampler.for_workflows(model, tokenizer)
    return GenerateSampler(model, tokenizer)


def architecture_problem(config: Any) -> str | None:
    """Return why our own sampler does not support a model of that config; None if it seems to."""
    if config.model_type not in OWN_ARCHITECTURES:
        return f"a {config.model_type} model, and only Qwen2 and Llama are supported"
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ()
    if any(kind != "full_attention" for kind in kinds) and not (
        window and window >= config.max_position_embeddings
    ):
        return f"a model with a sliding window of {window} tokens, which is not supported"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT:
        return f"a model with rotary positions of the type {rope}, which depend on a text's length"
    return None


_MATCHED: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
"""Whether our own sampler reproduces the logits of each model that was compared."""


def own_sampler_problem(model: Any) -> str | None:
    """Return why our own sampler does not support the model; None if it does.

    The logits of each model are compared once with those of transformers, as the model's type does
    not guarantee that they are equal.
    """
    problem = architecture_problem(model.config)
    if problem is None and type(model).__name__ not in OWN_ARCHITECTURES.values():
        problem = f"a {type(model).__name__}, and only Qwen2 and Llama are supported"
    if problem:
        return problem
    if model not in _MATCHED:
        _MATCHED[model] = _matches_transformers(model)
    return None if _MATCHED[model] else "a model whose logits it does not reproduce"


@torch.inference_mode()
def _matches_transformers(model: Any) -> bool:
    """Compare our own sampler's logits with those of transformers on two short texts."""
    ids = (torch.arange(18, device=model.device) * 7919 + 3).view(2, 9) % model.config.vocab_size
    with eval_mode(model):
        theirs = model(ids, use_cache=False).logits[:, 5:].float()
        try:
            decoding = _Decoding(model, ids[:, :6].tolist(), pad=0, group=1, max_tokens=3)
            steps = [decoding.step(ids[:, 6 + at], at) for at in range(3)]
        except (AttributeError, LookupError, RuntimeError, TypeError):
            return False
    ours = torch.stack([decoding.first, *steps], 1).float()
    narrow = torch.is_autocast_enabled(model.device.type) or theirs.dtype != torch.float32
    allowed = (_NARROW_TOLERANCE if narrow else _TOLERANCE) * max(1.0, float(theirs.abs().max()))
    return bool((ours - theirs).abs().max() < allowed)


def _sample_tokens(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Sample a token per row by inversion: `torch.multinomial` took half of all sampling time.

    The random numbers come from the CPU, wherever the logits are.
    """
    if temperature <= 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
    drawn = (
        torch.rand((len(cumulative), 1), generator=generator).to(cumulative.device)
        * cumulative[:, -1:]
    )
    return torch.searchsorted(cumulative, drawn).squeeze(1).clamp_(max=cumulative.shape[-1] - 1)


def _truncate_at_end(row: list[int], ends: Collection[int]) -> list[int]:
    """Return the tokens up to the first of `ends`, inclusive."""
    first = next((at for at, token in enumerate(row) if token in ends), len(row))
    return row[: first + 1]


def _head_of(head: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function that computes logits in autocast's precision, converting the matrix once.

    `narrow_weights` leaves out an output matrix that is tied to the embeddings.
    """
    if type(head) is not torch.nn.Linear or head.bias is not None:
        return head  # with adapters
    device = head.weight.device.type
    narrow = torch.is_autocast_enabled(device)
    weight = head.weight.to(torch.get_autocast_dtype(device)) if narrow else head.weight
    return partial(functional.linear, weight=weight)


class _Decoding:
    """The state of one batch: keys and values of the prompts (Q), and those of the rows (B).

    `first` are the logits after the prompts, (B, vocabulary).
    """

    def __init__(
        self,
        model: Qwen2ForCausalLM,
        prompts: Sequence[Sequence[int]],
        pad: int,
        group: int,
        *,
        max_tokens: int,
    ) -> None:
        config: Any = model.config
        self.model: Any = model
        self.group = group
        self.kv_heads: int = config.num_key_value_heads
        self.shared_heads: int = config.num_attention_heads // self.kv_heads
        attention: Any = model.model.layers[0].self_attn
        self.width: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.device: torch.device = self.model.device
        lengths_Q = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        longest = int(lengths_Q.max())
        padded = [[*prompt, *[pad] * (longest - len(prompt))] for prompt in prompts]
        mask_QP = torch.arange(longest, device=self.device)[None] < lengths_Q[:, None]
        cache: Any = DynamicCache()
        read_QP = torch.tensor(padded, device=self.device)
        inner = self.model.model(read_QP, attention_mask=mask_QP.long(), cache=cache)
        every_Q = torch.arange(len(prompts), device=self.device)
        last_QD = inner.last_hidden_state[every_Q, lengths_Q - 1]
        self.head = _head_of(self.model.lm_head)
        self.first: Tensor = self.head(last_QD).repeat_interleave(group, 0)
        self.prompt_keys = [layer.keys.transpose(-1, -2).contiguous() for layer in cache.layers]
        self.prompt_values = [layer.values.contiguous() for layer in cache.layers]
        self.padding_QP = torch.zeros(mask_QP.shape, device=self.device)
        self.padding_QP.masked_fill_(~mask_QP, float("-inf"))
        self.lengths_B = lengths_Q.repeat_interleave(group)
        rows = len(prompts) * group
        shape = (rows, self.kv_heads, max_tokens, self.width)
        self.own_keys = [torch.empty(shape, device=self.device) for _ in cache.layers]
        self.own_values = [torch.empty(shape, device=self.device) for _ in cache.layers]

    def keep(self, kept_B: Tensor) -> None:
        """Keep only the rows of the mask, each with a copy of its prompt's keys and values."""
        kept_B = kept_B.to(self.device)
        rows = torch.arange(len(kept_B), device=self.device)
        which = rows.div(self.group, rounding_mode="floor")[kept_B]
        self.prompt_keys = [keys[which] for keys in self.prompt_keys]
        self.prompt_values = [values[which] for values in self.prompt_values]
        self.padding_QP = self.padding_QP[which]
        self.lengths_B = self.lengths_B[kept_B]
        self.own_keys = [keys[kept_B] for keys in self.own_keys]
        self.own_values = [values[kept_B] for values in self.own_values]
        self.group = 1

    def step(self, tokens_B: Tensor, at: int) -> Tensor:
        """Return the logits (B, vocabulary) after `tokens_B` at position `at` of completions."""
        core = self.model.model
        hidden = core.embed_tokens(tokens_B.to(self.device))[:, None]
        cos, sin = core.rotary_emb(hidden, (self.lengths_B + at)[:, None])
        for index, layer in enumerate(core.layers):
            normed = layer.input_layernorm(hidden)
            hidden = hidden + self._attend(layer.self_attn, index, normed, (cos, sin), at=at)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.head(core.norm(hidden[:, 0]))

    def _attend(
        self,
        attention: Any,
        index: int,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        *,
        at: int,
    ) -> Tensor:
        """Return the attention output of layer `index` for the new tokens, (B, 1, D)."""
        rows = len(hidden)
        cos, sin = rotation
        query = attention.q_proj(hidden).view(rows, -1, self.width)
        key = attention.k_proj(hidden).view(rows, -1, self.width)
        query = query * cos + rotate_half(query) * sin
        self.own_keys[index][:, :, at] = key * cos + rotate_half(key) * sin
        self.own_values[index][:, :, at] = attention.v_proj(hidden).view(rows, -1, self.width)
        mixed = self._mix(index, query * self.scaling, at + 1)
        return attention.o_proj(mixed.reshape(rows, 1, -1))

    def _mix(self, index: int, query: Tensor, own: int) -> Tensor:
        """Return the values weighted over the shared prompt and the row's `own` tokens.

        `query` is (B, heads, width); the result is (B, key heads, heads per key head, width).
        """
        rows, heads, repeats = len(query), self.kv_heads, self.shared_heads
        questions = rows // self.group
        own_keys = self.own_keys[index][:, :, :own]
        own_values = self.own_values[index][:, :, :own]
        query = query.view(rows, heads, repeats, self.width)
        grouped = query.view(questions, self.group, heads, repeats, self.width).transpose(1, 2)
        grouped = grouped.reshape(questions, heads, self.group * repeats, self.width)
        to_prompt = grouped @ self.prompt_keys[index] + self.padding_QP[:, None, None]
        to_prompt = to_prompt.view(questions, heads, self.group, repeats, -1).transpose(1, 2)
        to_prompt = to_prompt.reshape(rows, heads, repeats, -1)
        to_own = query @ own_keys.transpose(-1, -2)
        weights = functional.softmax(torch.cat([to_prompt, to_own], -1), -1)
        on_prompt, on_own = weights.split([to_prompt.shape[-1], own], -1)
        on_prompt = on_prompt.view(questions, self.group, heads, repeats, -1).transpose(1, 2)
        on_prompt = on_prompt.reshape(questions, heads, self.group * repeats, -1)
        mixed = (on_prompt @ self.prompt_values[index]).view(
            questions, heads, self.group, repeats, self.width
        )
        mixed = mixed.transpose(1, 2).reshape(rows, heads, repeats, self.width)
        return mixed + on_own @ own_values
