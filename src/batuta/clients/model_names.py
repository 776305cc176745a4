"""One spelling for a model's name, whoever serves it."""

from __future__ import annotations

import re

_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6}|latest|preview$|beta$)(?=-|$)")
_FORM = re.compile(r"-(?:instruct|it|hf|gguf|awq|gptq|fp8|fp16|bf16|q\d(?:-[a-z0-9]+)*)(?=-|$)")
_BEDROCK = re.compile(r"-v\d+:\d+$")
_REGION = re.compile(r"^(?:us|eu|apac|global|regional)\.")
_FAMILY = re.compile(r"^(llama|qwen|gemma|phi)-(?=\d)")
_MAKER = re.compile(r"^(?:anthropic|amazon|meta|mistral|cohere|deepseek|openai|qwen)\.")


def plain_name(model: str) -> str:
    """The name without its maker, date and packaging.

    `anthropic/claude-sonnet-4.5:beta` is `claude-sonnet-4-5`, and Ollama's `qwen3:32b-q4_K_M` is
    `qwen3-32b`. A short date as in `deepseek-r1-0528` stays: providers name other models so.
    """
    name = _BEDROCK.sub("", model.lower().rpartition("/")[2].removesuffix(".gguf"))
    name = _MAKER.sub("", _REGION.sub("", name))
    name = re.sub(r"[:._@ ]+", "-", name).strip("-")
    return _FAMILY.sub(r"\1", _FORM.sub("", _DATE.sub("", name))) or name
