"""Fits selectors, routers and cascades to recorded outcomes."""
