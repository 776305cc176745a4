"""Policies that check the request, the replies between workers, and the answer."""

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
