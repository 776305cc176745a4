"""OpenAI's APIs: chat completions, responses, embeddings, images and moderation."""
