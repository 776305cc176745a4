"""Published routers that are fitted to a history, one file per paper; listed in the registry."""

from batuta.lab.baselines.routing.random_routing import RandomRouting
from batuta.lab.baselines.routing.router import Router
from batuta.lab.baselines.routing.smoothie import Smoothie

__all__ = ["RandomRouting", "Router", "Smoothie"]
