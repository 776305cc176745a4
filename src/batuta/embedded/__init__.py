"""Models of trained conductors in this process: a tiny Qwen2 in numpy, or a GGUF file."""

from batuta.embedded.bpe import Tokenizer
from batuta.embedded.client import CHAT_TEMPLATE, EmbeddedClient
from batuta.embedded.qwen2 import KVCache, Qwen2, Qwen2Config

__all__ = [
    "CHAT_TEMPLATE",
    "EmbeddedClient",
    "KVCache",
    "Qwen2",
    "Qwen2Config",
    "Tokenizer",
]
