"""The workflow language: text to `Workflow` and back, and the prompts. Pure."""

from batuta.language.parser import parse_workflow
from batuta.language.prompt import PromptOptions, conductor_request, worker_messages
from batuta.language.renderer import ACCEPTED, render_workflow

__all__ = [
    "ACCEPTED",
    "PromptOptions",
    "conductor_request",
    "parse_workflow",
    "render_workflow",
    "worker_messages",
]
