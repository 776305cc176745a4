"""Batuta: an open, self-hosted conductor of language models."""
