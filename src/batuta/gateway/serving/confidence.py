"""Whether a request may ask how sure its answer is."""

from __future__ import annotations

from batuta.engine.confidence import ConfidenceModel
from batuta.gateway.errors import unsupported_parameter
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import ORCHESTRATION_FIELD, RunOptions


def check_confidence(
    options: RunOptions, served: ServedModel, model: ConfidenceModel | None
) -> None:
    """Return if the request asks for no probability, or for one that was fitted.

    Raises:
        APIError: nothing was fitted to the runs of that model.
    """
    if options.min_confidence is None:
        return
    conductor = served.conductor.name if served.conductor is not None else ""
    if model is None or conductor not in model.conductors:
        reason = (
            f"nothing says how sure answers of {served.name} are; fit it with "
            "batuta eval --calibrate and name the file in [confidence]."
        )
        raise unsupported_parameter(f"{ORCHESTRATION_FIELD}.min_confidence", reason)
