"""Presentation of text: models' Markdown and LaTeX as HTML, and all output on a terminal."""
