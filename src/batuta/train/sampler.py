"""Completions of a small policy: one prefill a question, shared by its whole group.

Generation dominates training, on a CPU above all. A group's completions continue the same prompt,
so its keys and values are computed once and never copied: scores against them are one matrix
product a question, and only the completions' own keys are kept a row. For Qwen2 and Llama, whose
layers are the same; any other architecture is sampled by transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import rotate_half

from batuta.train.device import linear_weights

OWN_ARCHITECTURES = ("Qwen2ForCausalLM", "LlamaForCausalLM")
"""Whose layers our own sampler computes."""
LIST_END = "]]"
"""How the last list of a draft ends."""
COMPACT_SHARE = 0.25
"""Share of rows that have ended above which they are let go."""


class ListEndDetector:
    """Knows when a draft's last list is closed: nothing that comes after it is read.

    Without it an entropy bonus pays for any words behind the lists.
    """

    def __init__(self, tokenizer: Any, size: int | None = None) -> None:
        """Reads every token; a draft ends with two closing brackets, and has them nowhere else.

        Args:
            tokenizer: of the policy.
            size: tokens that the policy can write; a vocabulary is often rounded up to more than
                its tokenizer has, and those mean nothing. None: as many as the tokenizer has.
        """
        texts: list[str] = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        texts += [""] * ((size or 0) - len(texts))
        self._whole = torch.tensor([LIST_END in text for text in texts])
        self._first = torch.tensor([text.endswith(LIST_END[0]) for text in texts])
        self._second = torch.tensor([text.startswith(LIST_END[1]) for text in texts])

    def is_closed(self, before_B: Tensor, tokens_B: Tensor) -> Tensor:
        """For each row whether it is closed by its newest token, given the one before."""
        return self._whole[tokens_B] | (self._first[before_B] & self._second[tokens_B])


@contextmanager
def stop_training(model: torch.nn.Module) -> Iterator[None]:
    """Within it the model is not training; with gradient checkpointing it keeps keys only so."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def narrow_weights(model: torch.nn.Module) -> Iterator[None]:
    """Within it the matrices lie in memory as autocast computes with them; afterwards as before.

    Autocast makes them narrow anew for every token that is written, which takes longer than the
    products themselves. The numbers are the same. A matrix that is also the table of the
    vocabulary's vectors stays as it is, for those are read wide. Without autocast nothing changes.
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
    """Samples completions of a Qwen2 or a Llama, always with its present weights."""

    def __init__(
        self,
        model: Qwen2ForCausalLM,
        *,
        pad: int,
        end: int,
        end_detector: ListEndDetector | None = None,
    ) -> None:
        """Learns whose weights to read.

        Args:
            model: the policy.
            pad: token that fills up prompts.
            end: token that ends a completion.
            end_detector: after which `end` follows by itself.
        """
        self._model = model
        self._pad = pad
        self._end = end
        self._closing = end_detector

    @classmethod
    def for_workflows(cls, model: Qwen2ForCausalLM, tokenizer: Any) -> Self:
        """For drafts of workflows, which end with their lists."""
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
        """`group` completions of every prompt, in the prompts' order.

        Args:
            prompts: token ids.
            group: completions of each.
            max_tokens: tokens of a completion at most, its end included.
            temperature: 0 takes the likeliest token.
            generator: of the chance.
        """
        with stop_training(self._model), narrow_weights(self._model):
            decoding = _Decoding(self._model, prompts, pad=self._pad, group=group, most=max_tokens)
            return self._decode(decoding, max_tokens, temperature, generator)

    def _decode(
        self, decoding: _Decoding, max_tokens: int, temperature: float, generator: torch.Generator
    ) -> list[list[int]]:
        """Token after token, until every row has ended; what was written is kept by the CPU."""
        written = torch.full((len(decoding.lengths_B), max_tokens), self._end)
        rows = torch.arange(len(written))
        logits = decoding.first
        over = torch.zeros(len(rows), dtype=torch.bool)
        for at in range(max_tokens):
            chosen = _sample_tokens(logits, temperature, generator).cpu()
            chosen = chosen.masked_fill(over, self._end)
            written[rows, at] = chosen
            over |= chosen == self._end
            if self._closing is not None:
                over |= self._closing.is_closed(written[rows, max(0, at - 1)], chosen)
            if at == max_tokens - 1 or over.all():
                break
            if over.float().mean() > COMPACT_SHARE:
                going = ~over
                decoding.keep(going)
                rows, chosen, over = rows[going], chosen[going], over[going]
            logits = decoding.step(chosen, at)
        return [_cut_at_end(row, self._end) for row in written.tolist()]


@dataclass(frozen=True, slots=True)
class GenerateSampler:
    """Samples completions of any causal language model by transformers' own `generate`."""

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
        """As `Sampler.sample`; the prompts of a group are read once for each of its completions."""
        found: list[list[int]] = []
        end, pad = int(self.tokenizer.eos_token_id), int(self.tokenizer.pad_token_id)
        for prompt in prompts:
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            chance = {"do_sample": True, "temperature": temperature, "top_k": 0}
            rows = self.model.generate(
                torch.tensor([list(prompt)], device=self.model.device),
                num_return_sequences=group,
                max_new_tokens=max_tokens,
                pad_token_id=pad,
                **(chance if temperature > 0 else {"do_sample": False}),
            )
            found += [_cut_at_end(row, end) for row in rows[:, len(prompt) :].tolist()]
        return found


def open_sampler(model: Any, tokenizer: Any) -> Sampler | GenerateSampler:
    """Our own sampler where it can compute the model, else that of transformers."""
    if type(model).__name__ in OWN_ARCHITECTURES:
        return Sampler.for_workflows(model, tokenizer)
    return GenerateSampler(model, tokenizer)


def _sample_tokens(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """A token a row, by inversion: `torch.multinomial` took half of all sampling time.

    The chance is the processor's, wherever the logits are.
    """
    if temperature <= 0:
        return logits.argmax(-1)
    heaps = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
    drawn = torch.rand((len(heaps), 1), generator=generator).to(heaps.device) * heaps[:, -1:]
    return torch.searchsorted(heaps, drawn).squeeze(1).clamp_(max=heaps.shape[-1] - 1)


def _cut_at_end(row: list[int], end: int) -> list[int]:
    """The tokens up to and with the first `end`."""
    return row[: row.index(end) + 1] if end in row else row


def _narrow_head(weight: Tensor) -> Tensor:
    """The last matrix as autocast computes with it; it may be the table of vectors too."""
    device = weight.device.type
    narrow = torch.is_autocast_enabled(device)
    return weight.to(torch.get_autocast_dtype(device)) if narrow else weight


class _Decoding:
    """The state of one batch: shared keys of the prompts (Q) and own keys of the rows (B)."""

    def __init__(
        self,
        model: Qwen2ForCausalLM,
        prompts: Sequence[Sequence[int]],
        pad: int,
        group: int,
        *,
        most: int,
    ) -> None:
        config: Any = model.config
        self.model: Any = model
        self.group = group
        self.kv_heads: int = config.num_key_value_heads
        self.shared_heads: int = config.num_attention_heads // self.kv_heads
        self.width: int = config.hidden_size // config.num_attention_heads
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
        self.head = _narrow_head(self.model.lm_head.weight)
        self.first: Tensor = functional.linear(last_QD, self.head).repeat_interleave(group, 0)
        self.prompt_keys = [layer.keys.transpose(-1, -2).contiguous() for layer in cache.layers]
        self.prompt_values = [layer.values.contiguous() for layer in cache.layers]
        self.hidden_QP = torch.zeros(mask_QP.shape, device=self.device)
        self.hidden_QP.masked_fill_(~mask_QP, float("-inf"))
        self.lengths_B = lengths_Q.repeat_interleave(group)
        rows = len(prompts) * group
        shape = (rows, self.kv_heads, most, self.width)
        self.own_keys = [torch.empty(shape, device=self.device) for _ in cache.layers]
        self.own_values = [torch.empty(shape, device=self.device) for _ in cache.layers]

    def keep(self, going_B: Tensor) -> None:
        """Go on with these rows only; each then has its prompt for itself."""
        going_B = going_B.to(self.device)
        rows = torch.arange(len(going_B), device=self.device)
        which = rows.div(self.group, rounding_mode="floor")[going_B]
        self.prompt_keys = [keys[which] for keys in self.prompt_keys]
        self.prompt_values = [values[which] for values in self.prompt_values]
        self.hidden_QP = self.hidden_QP[which]
        self.lengths_B = self.lengths_B[going_B]
        self.own_keys = [keys[going_B] for keys in self.own_keys]
        self.own_values = [values[going_B] for values in self.own_values]
        self.group = 1

    def step(self, tokens_B: Tensor, at: int) -> Tensor:
        """The logits after `tokens_B`, which stand at position `at` of the completions."""
        core = self.model.model
        hidden = core.embed_tokens(tokens_B.to(self.device))[:, None]
        cos, sin = core.rotary_emb(hidden, (self.lengths_B + at)[:, None])
        for index, layer in enumerate(core.layers):
            normed = layer.input_layernorm(hidden)
            hidden = hidden + self._attend(layer.self_attn, index, normed, (cos, sin), at=at)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return functional.linear(core.norm(hidden[:, 0]), self.head)

    def _attend(
        self, attention: Any, index: int, hidden: Tensor, turn: tuple[Tensor, Tensor], *, at: int
    ) -> Tensor:
        rows = len(hidden)
        cos, sin = turn
        query = attention.q_proj(hidden).view(rows, -1, self.width)
        key = attention.k_proj(hidden).view(rows, -1, self.width)
        query = query * cos + rotate_half(query) * sin
        self.own_keys[index][:, :, at] = key * cos + rotate_half(key) * sin
        self.own_values[index][:, :, at] = attention.v_proj(hidden).view(rows, -1, self.width)
        mixed = self._mix(index, query * self.width**-0.5, at + 1)
        return attention.o_proj(mixed.reshape(rows, 1, -1))

    def _mix(self, index: int, query: Tensor, own: int) -> Tensor:
        """Values weighted over the prompt, which the group shares, and the row's own tokens."""
        rows, heads, repeats = len(query), self.kv_heads, self.shared_heads
        questions = rows // self.group
        own_keys = self.own_keys[index][:, :, :own]
        own_values = self.own_values[index][:, :, :own]
        query = query.view(rows, heads, repeats, self.width)
        grouped = query.view(questions, self.group, heads, repeats, self.width).transpose(1, 2)
        grouped = grouped.reshape(questions, heads, self.group * repeats, self.width)
        to_prompt = grouped @ self.prompt_keys[index] + self.hidden_QP[:, None, None]
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
