"""The environment of programs that tests start: without keys, and without servers of this machine."""

import os

SILENT = "http://127.0.0.1:9/v1"
"""An address at which nothing listens."""
NOWHERE = {
    "OLLAMA_HOST": "127.0.0.1:9",
    **{f"{name}_BASE_URL": SILENT for name in ("VLLM", "SGLANG", "LLAMACPP", "LMSTUDIO")},
}
"""No server of models that somebody runs on this machine is found."""
_OWN = ("API_KEY", "BASE_URL", "OLLAMA", "BATUTA")


def clean_environ(*words, **more):
    """This process's environment without providers' and Batuta's variables, nor those with a word."""
    left = {k: v for k, v in os.environ.items() if not any(word in k for word in (*_OWN, *words))}
    return {**left, **NOWHERE, **more}
