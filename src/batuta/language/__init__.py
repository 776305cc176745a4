"""The workflow language: text to `Workflow` and back, and the prompts. Pure."""

from batuta.language.parse import parse
from batuta.language.prompt import Rendering, conductor_request, worker_messages
from batuta.language.render import render

__all__ = ["Rendering", "conductor_request", "parse", "render", "worker_messages"]
