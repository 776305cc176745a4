"""Named rules on the texts that go in, that pass between workers, and that come out."""

from batuta.guardrails.grounded import GroundedAction, GroundedPolicy
from batuta.guardrails.guardrail import (
    NO_GUARDRAILS,
    Guardrail,
    GuardrailAction,
    Guardrails,
    GuardrailStage,
    describe_block,
)
from batuta.guardrails.response_format import ResponseFormatChecker

__all__ = [
    "NO_GUARDRAILS",
    "GroundedAction",
    "GroundedPolicy",
    "Guardrail",
    "GuardrailAction",
    "GuardrailStage",
    "Guardrails",
    "ResponseFormatChecker",
    "describe_block",
]
