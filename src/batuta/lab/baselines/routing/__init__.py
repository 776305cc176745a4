"""Published routers: fitted on a history, one file and one paper each; listed in the registry."""

from batuta.lab.baselines.routing.random_routing import RandomRouting
from batuta.lab.baselines.routing.router import Router
from batuta.lab.baselines.routing.smoothie import Smoothie

__all__ = ["RandomRouting", "Router", "Smoothie"]
