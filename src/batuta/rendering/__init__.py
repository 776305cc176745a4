"""Models' Markdown and LaTeX as HTML; light, so that another process starts quickly."""

from batuta.rendering.answer import render_answer

__all__ = ["render_answer"]
