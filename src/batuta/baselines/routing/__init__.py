"""Published routers: fitted on a history, one file and one paper each; listed in the registry."""

from batuta.baselines.routing.random_routing import RandomRouting
from batuta.baselines.routing.router import Router
from batuta.baselines.routing.smoothie import Smoothie

__all__ = ["RandomRouting", "Router", "Smoothie"]
