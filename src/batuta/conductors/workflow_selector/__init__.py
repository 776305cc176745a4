"""The workflow selector, which maps a question's text to a workflow."""

from batuta.conductors.workflow_selector.model import (
    WorkflowSelector,
    fit_ease,
    fit_reader,
    is_workflow_selector,
    open_workflow_selector,
    save_workflow_selector,
)

__all__ = [
    "WorkflowSelector",
    "fit_ease",
    "fit_reader",
    "is_workflow_selector",
    "open_workflow_selector",
    "save_workflow_selector",
]
