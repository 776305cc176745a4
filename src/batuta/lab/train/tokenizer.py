"""A tokenizer trained on the texts that a small conductor will read and write."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPLIT_PATTERN = (
    r'(?:"?\]\n)?(?:model_id|subtasks|access_list) = \[+"?'
    r"| ?\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+(?: [^\sA-Za-z\d]+)*|\s+"
)
"""Each match may become one token: the frame of the lists, a digit, a word, a run of signs."""

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(texts: Iterable[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of `size` tokens, which can encode any text.

    Args:
        texts: the texts to train on.
        size: the size of the vocabulary, at least 256 + 5.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, END, *ROLES],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
