"""Published routers that are fitted to a history, one file per paper; listed in the registry."""

__all__ = []
