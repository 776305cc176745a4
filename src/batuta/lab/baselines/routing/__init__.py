"""Published routers and choosers that are fitted to a history."""

__all__ = []
