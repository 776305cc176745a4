"""The learned selector: one worker for each question, picked in less than a millisecond."""

from batuta.solvers.selector.folder import is_selector, open_selector, save_selector
from batuta.solvers.selector.model import Selector
from batuta.solvers.selector.training import SelectorRecipe, fit_selector

__all__ = [
    "Selector",
    "SelectorRecipe",
    "fit_selector",
    "is_selector",
    "open_selector",
    "save_selector",
]
