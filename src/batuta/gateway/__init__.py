"""The HTTP service: OpenAI's and Anthropic's APIs and a web page, for a pool and its conductor."""

from batuta.gateway.app import ServerState, create_app
from batuta.gateway.serve import LOOP_OPTIONS, run_server
from batuta.gateway.serving.deliver import StreamTimeouts
from batuta.gateway.serving.models import Catalogue, PageContext, ServedModel, served_models

__all__ = [
    "LOOP_OPTIONS",
    "Catalogue",
    "PageContext",
    "ServedModel",
    "ServerState",
    "StreamTimeouts",
    "create_app",
    "run_server",
    "served_models",
]
