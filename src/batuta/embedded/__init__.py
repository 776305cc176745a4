"""The embedded conductor's model: a tiny Qwen2, computed in this process with numpy."""

from batuta.embedded.bpe import Tokenizer
from batuta.embedded.chat import TEMPLATE
from batuta.embedded.model import DEFAULTS, Embedded
from batuta.embedded.qwen2 import Cache, Qwen2, Shape

__all__ = ["DEFAULTS", "TEMPLATE", "Cache", "Embedded", "Qwen2", "Shape", "Tokenizer"]
