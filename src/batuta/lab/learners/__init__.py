"""Learners: from recorded outcomes to selectors."""
