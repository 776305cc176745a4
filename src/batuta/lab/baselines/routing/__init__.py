"""Published routers that are fitted to a history; `baselines.registry` lists them."""

__all__ = []
