"""The learned selector, which picks one worker per question."""

from batuta.conductors.selector.model import (
    Selector,
    folder_digest,
    is_selector,
    open_selector,
    save_selector,
)

__all__ = [
    "Selector",
    "folder_digest",
    "is_selector",
    "open_selector",
    "save_selector",
]
