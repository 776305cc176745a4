"""The product: an OpenAI-compatible API in front of an orchestra."""

from batuta.gateway.app import create_app
from batuta.gateway.http.sse import StreamTimeouts
from batuta.gateway.serve import LOOP_OPTIONS, run_server
from batuta.gateway.serving.models import PageContext, ServedModel, ServerState, served_models

__all__ = [
    "LOOP_OPTIONS",
    "PageContext",
    "ServedModel",
    "ServerState",
    "StreamTimeouts",
    "create_app",
    "run_server",
    "served_models",
]
