"""The learned selector: one worker for each question, picked in less than a millisecond."""

from batuta.solvers.selector.fit import Recipe, fit_selector
from batuta.solvers.selector.folder import is_selector, open_selector, save_selector
from batuta.solvers.selector.model import Selector

__all__ = [
    "Recipe",
    "Selector",
    "fit_selector",
    "is_selector",
    "open_selector",
    "save_selector",
]
