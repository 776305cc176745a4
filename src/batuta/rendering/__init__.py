"""Rendering of text: models' Markdown and LaTeX as HTML, PDF reports, and terminal output."""
