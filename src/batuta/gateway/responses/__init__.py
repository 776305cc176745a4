"""OpenAI's Responses API: /v1/responses, its stored and background responses, and compaction."""
