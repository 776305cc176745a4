"""Our sampler writes what transformers writes, from one prefill a question."""

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from batuta.train.model import read_tokenizer
from batuta.train.sampler import ListEndDetector, Sampler, narrow_weights

PAD, END, WORDS = 0, 1, 50


def network(heads, kv_heads, layers, seed=0):
    """A small Qwen2 whose choices are far apart."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=8 * heads, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=128,
        tie_word_embeddings=False, initializer_range=0.3, pad_token_id=PAD, eos_token_id=None,
        bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def prompts(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, WORDS, (n,), generator=generator).tolist() for n in lengths]


def greedy(model, asked, most, end):
    """What transformers writes to each prompt alone."""
    written = []
    for ids in asked:
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(),
                             max_new_tokens=most, do_sample=False, eos_token_id=end)  # fmt: skip
        written.append(out[0, len(ids) :].tolist())
    return written


def sampled(model, asked, group, most, *, end, temperature=0.0, seed=0):
    return Sampler(model, pad=PAD, end=end).sample(
        asked, group, max_tokens=most, temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads", "layers"), [(4, 4, 1), (4, 2, 2), (6, 1, 3)])
@pytest.mark.parametrize("lengths", [(5,), (3, 17, 9), (24, 1, 24, 2)], ids=str)
def test_greedily_it_writes_what_transformers_writes(heads, kv_heads, layers, lengths):
    model, asked = network(heads, kv_heads, layers), prompts(lengths)
    expected = greedy(model, asked, 14, end=None)
    assert len({tuple(each) for each in expected}) == len(asked), "the prompts matter"
    found = sampled(model, asked, 3, 14, end=-1)
    assert found == [each for each in expected for _ in range(3)]


def test_left_padded_batches_of_transformers_are_the_same_too():
    model, asked = network(4, 2, 2), prompts((4, 11, 7))
    longest = max(map(len, asked))
    ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in asked])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in asked])
    out = model.generate(ids, attention_mask=mask, max_new_tokens=10, do_sample=False)  # pyright: ignore[reportAttributeAccessIssue]
    assert sampled(model, asked, 1, 10, end=-1) == out[:, longest:].tolist()


def test_rows_end_where_their_end_is_written_while_others_go_on():
    model, asked = network(4, 2, 2), prompts((4, 11, 7, 5, 8, 3))
    open_ended = greedy(model, asked, 20, end=None)
    end = open_ended[0][4]
    expected = [row[: row.index(end) + 1] if end in row else row for row in open_ended]
    assert len({len(row) for row in expected}) > 1, "they end at different places"
    assert sampled(model, asked, 4, 20, end=end) == [row for row in expected for _ in range(4)]


def chi_squared(counts, shares):
    expected = shares * counts.sum()
    common = expected > 5
    rest = expected[~common].sum().clamp(min=1e-9)
    off = ((counts[common] - expected[common]) ** 2 / expected[common]).sum()
    return float(off + (counts[~common].sum() - rest) ** 2 / rest), int(common.sum())


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_tokens_come_as_often_as_the_softmax_says(temperature):
    model, (ask,) = network(4, 2, 2, seed=3), prompts((6,))
    logits = model(torch.tensor([ask])).logits[0, -1]
    first = (logits / temperature).softmax(-1).detach()
    rows = sampled(model, [ask], 6000, 2, end=-1, temperature=temperature)
    counts = torch.bincount(torch.tensor([row[0] for row in rows]), minlength=WORDS).double()
    off, free = chi_squared(counts, first.double())
    assert off < free + 5 * (2 * free) ** 0.5, "five standard deviations"
    usual = int(counts.argmax())
    then = (model(torch.tensor([[*ask, usual]])).logits[0, -1] / temperature).softmax(-1).detach()
    seconds = torch.tensor([row[1] for row in rows if row[0] == usual])
    off, free = chi_squared(torch.bincount(seconds, minlength=WORDS).double(), then.double())
    assert off < free + 5 * (2 * free) ** 0.5


def test_the_same_chance_writes_the_same_and_another_writes_something_else():
    model, asked = network(4, 2, 2), prompts((6, 9))
    one, same, other = (
        sampled(model, asked, 8, 12, end=END, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len({tuple(row) for row in one}) > 8, "the rows of a group differ"


def test_it_samples_with_the_weights_of_the_moment():
    model, asked = network(4, 2, 2), prompts((6,))
    before = sampled(model, asked, 1, 8, end=-1)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    after = sampled(model, asked, 1, 8, end=-1)
    assert after != before and after == greedy(model, asked, 8, end=None)


class Words:
    """A tokenizer with these words and nothing else."""

    def __init__(self, words):
        self.words = words

    def __len__(self):
        return len(self.words)

    def batch_decode(self, rows):
        return ["".join(self.words[token] for token in row) for row in rows]


SIGNS = ["_", ".", "a", "]", "]]", "[", "[]]", "a]", "]\n"]


def test_a_draft_is_closed_by_two_brackets_however_they_are_cut():
    closing = ListEndDetector(Words(SIGNS))
    pairs = [(a, b) for a in range(len(SIGNS)) for b in range(len(SIGNS))]
    before, tokens = torch.tensor(pairs).T
    found = closing.is_closed(before, tokens).tolist()
    texts = [(SIGNS[a], SIGNS[b]) for a, b in pairs]
    assert found == ["]]" in b or (a[-1] == "]" and b[0] == "]") for a, b in texts]


def test_nothing_is_written_after_the_lists_are_closed():
    words = ["_", ".", *(["]]"] * 6), *("a" * (WORDS - 8))]
    sampler = Sampler(
        network(4, 2, 2), pad=PAD, end=END, end_detector=ListEndDetector(Words(words))
    )
    chance = torch.Generator().manual_seed(0)
    rows = sampler.sample(prompts((6, 9)), 200, max_tokens=12, temperature=2.0, generator=chance)
    closed = [row for row in rows if any(2 <= token < 8 for token in row)]
    assert len(closed) > 100 and len({len(row) for row in closed}) > 5
    for row in closed:
        first = next(at for at, token in enumerate(row) if 2 <= token < 8)
        assert row[first + 1 :] in ([END], []) and (row[-1] == END or len(row) == 12)


@pytest.mark.parametrize("tied", [False, True])
def test_under_autocast_it_writes_what_transformers_writes_and_leaves_the_weights(tied):
    model, asked = network(4, 2, 2), prompts((5, 12))
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    with torch.autocast("cpu", torch.bfloat16):
        expected = greedy(model, asked, 10, end=None)
        assert sampled(model, asked, 2, 10, end=-1) == [each for each in expected for _ in range(2)]
    for name, weight in model.named_parameters():
        assert weight.dtype is torch.float32 and torch.equal(weight, before[name])
    model(torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss.backward()
    assert mlp_of(model).up_proj.weight.grad is not None


def mlp_of(model: Any) -> Any:
    return model.model.layers[0].mlp


def test_weights_are_narrow_within_and_wide_again_after_an_error():
    model = network(4, 2, 1)
    inner = mlp_of(model).up_proj

    def stop():
        with torch.autocast("cpu", torch.bfloat16), narrow_weights(model):
            assert inner.weight.dtype is torch.bfloat16
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    with narrow_weights(model):
        assert inner.weight.dtype is torch.float32, "there is no autocast"


def test_a_vocabulary_may_be_larger_than_the_tokenizers(random_policy):
    """Qwen2.5 rounds its own up: what the tokenizer does not know can be written and ends nothing."""
    tokenizer = read_tokenizer(str(random_policy))
    model = network(4, 2, 1)
    model.resize_token_embeddings(len(tokenizer) + 40)
    torch.nn.init.normal_(model.lm_head.weight, std=0.01)
    rows = Sampler.for_workflows(model, tokenizer).sample(
        [[3, 4, 5]], 64, max_tokens=40, temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert any(token >= len(tokenizer) for row in rows for token in row)


def test_a_model_that_is_training_goes_on_training():
    model = network(4, 2, 1).train()
    sampled(model, prompts((4,)), 2, 5, end=-1)
    assert model.training
