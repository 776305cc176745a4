"""Local language models: downloaded, checked, and served by llama.cpp."""
