"""The files API, in the dialects of OpenAI and Anthropic."""
