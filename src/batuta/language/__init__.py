"""The workflow language: text to `Workflow` and back, and the prompts. Pure."""

from batuta.language.parse import parse
from batuta.language.prompt import Rendering, conductor_request, worker_messages
from batuta.language.render import ACCEPTED, render

__all__ = ["ACCEPTED", "Rendering", "conductor_request", "parse", "render", "worker_messages"]
