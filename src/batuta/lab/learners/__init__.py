"""Histories of outcomes, and the learning algorithms that are fitted to them."""
