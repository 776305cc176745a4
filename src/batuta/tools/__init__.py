"""Tools that Batuta runs itself: web search and pages, as workers of a workflow and for models."""
