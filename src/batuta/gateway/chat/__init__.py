"""OpenAI's Chat Completions API, and its legacy completions."""
