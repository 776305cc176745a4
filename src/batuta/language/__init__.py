"""The workflow language: text to `Workflow` and back, and the prompts. Pure."""

from batuta.language.parser import ACCEPTED, parse_workflow, render_workflow
from batuta.language.prompt import PromptOptions, conductor_request, worker_messages

__all__ = [
    "ACCEPTED",
    "PromptOptions",
    "conductor_request",
    "parse_workflow",
    "render_workflow",
    "worker_messages",
]
