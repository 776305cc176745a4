"""Our sampler writes what transformers writes, from one prefill a question."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from batuta.core import Step, Workflow
from batuta.lab import worlds
from batuta.lab.train.model import read_tokenizer
from batuta.lab.train.sampler import ListEndDetector, Sampler, narrow_weights
from batuta.language import render_workflow
from batuta.language.parser import ACCEPTED, is_complete_draft, read_lists

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

    def decode(self, row, **_):
        return "".join(self.words[token] for token in row)

    def batch_decode(self, rows):
        return [self.decode(row) for row in rows]


PIECES = [
    "]]", "[[1, 2], [3, 4]]", "]]]", '"', "\\", "'", "\n", "`", "{", "}", "<think>", "</think>",
    "model_id = [0]", "subtasks = ['x']", "access_list = [[]]", 'access_list = ["all"]', "\ud55c", "#",
]  # fmt: skip
"""What a text may have in it that looks like the end of a draft, or opens something."""
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=6).map("".join)


@st.composite
def rendered_drafts(draw):
    """A workflow with any texts as a policy writes it, maybe behind a thought with a grid."""
    pool = worlds.rehearsal_pool()
    steps = [
        Step(subtask=draw(TEXTS), worker=draw(st.sampled_from(pool.workers)).id, previous=before,
             access=tuple(range(at)) if before else tuple(draw(st.sets(st.integers(0, at - 1))) if at else ()))
        for at in range(draw(st.integers(1, 3))) for before in [draw(st.booleans())]
    ]  # fmt: skip
    flow = ACCEPTED if draw(st.integers(0, 9)) == 0 else render_workflow(
        Workflow(tuple(steps)), pool, names=draw(st.booleans())
    )  # fmt: skip
    thought = draw(
        st.sampled_from(["", "As [[1, 2], [3, 4]] says:\n", "<think>access_list = [[]]</think>"])
    )
    return thought + flow


@given(draft=rendered_drafts(), cuts=st.randoms(use_true_random=False))
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_a_draft_ends_with_its_last_list_and_never_before(draft, cuts):
    """Whatever its texts hold, and however it is cut into tokens."""
    assert is_complete_draft(draft)
    places = sorted(cuts.sample(range(1, len(draft)), min(len(draft) - 1, 30)))
    words = [draft[a:b] for a, b in pairwise([0, *places, len(draft)])]
    detector = ListEndDetector(Words(words))
    tokens = torch.arange(len(words))[None]
    found = [detector.is_closed(tokens[:, : at + 1], [""]).item() for at in range(len(words))]
    assert found == [False] * (len(words) - 1) + [True]
    before = (at for at in range(1, len(draft)) if is_complete_draft(draft[:at]))
    assert next(before, None) is None


@pytest.mark.parametrize("behind", ["", "\n", " That is all. access_list = [[0]]", "]]", '"', "{"])
def test_what_comes_behind_the_end_changes_nothing_that_is_read(behind):
    draft = 'subtasks = ["Invert [[1, 2], [3, 4]]."]\nmodel_id = [0]\naccess_list = [[]]'
    assert read_lists(draft + behind) == read_lists(draft)


def test_lists_in_a_thought_that_the_prompt_has_opened_end_nothing():
    flow = 'model_id = [0]\nsubtasks = ["x"]\naccess_list = [[]]'
    words = ["<|assistant|><think>\n", f"Say {flow}", "</think>", flow]
    detector, tokens = ListEndDetector(Words(words)), torch.tensor([[1, 2, 3]])
    opened = detector.opened_thought([3, 0])
    assert opened == "<think>\n" and detector.opened_thought([0, 3]) == ""
    assert not detector.is_closed(tokens[:, :1], [opened])
    assert detector.is_closed(tokens, [opened])
    assert detector.is_closed(tokens[:, :1], [""])


def test_a_draft_of_json_ends_with_its_brace():
    draft = (
        '{"thoughts": "]]", "steps": [{"model_id": "0", "subtask": "[[1]]", "access_list": []}]}'
    )
    assert [is_complete_draft(draft[:at]) for at in range(len(draft) + 1)] == [
        *[False] * len(draft), True
    ]  # fmt: skip


def test_nothing_is_written_after_the_lists_are_closed():
    flow = '\nmodel_id = [0]\nsubtasks = ["[[1]]"]\naccess_list = [[]]'
    words = ["_", ".", *([flow] * 6), *("]]" * 3), *("a" * (WORDS - 14))]
    sampler = Sampler(
        network(4, 2, 2), pad=PAD, end=END, end_detector=ListEndDetector(Words(words))
    )
    chance = torch.Generator().manual_seed(0)
    rows = sampler.sample(prompts((6, 9)), 200, max_tokens=12, temperature=2.0, generator=chance)
    closed = [row for row in rows if any(2 <= token < 8 for token in row)]
    assert len(closed) > 100 and len({len(row) for row in closed}) > 5
    assert any(8 <= token < 11 for row in rows for token in row[:-1]), "brackets alone end nothing"
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
