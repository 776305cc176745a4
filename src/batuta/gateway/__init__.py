"""The product: an OpenAI-compatible API in front of an orchestra."""

from batuta.gateway.app import create_app
from batuta.gateway.models import Orchestra, Served, Showcase, Timing, served_models
from batuta.gateway.serve import LOOP, serve

__all__ = [
    "LOOP",
    "Orchestra",
    "Served",
    "Showcase",
    "Timing",
    "create_app",
    "serve",
    "served_models",
]
