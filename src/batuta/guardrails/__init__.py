"""Named rules on what goes in, what goes between agents, and what comes out."""

from batuta.guardrails.detectors import DETECTORS, build_detector
from batuta.guardrails.grounded import GroundedAction, GroundedPolicy
from batuta.guardrails.guardrail import (
    NO_GUARDRAILS,
    Guardrail,
    GuardrailAction,
    GuardrailResult,
    Guardrails,
    GuardrailStage,
    describe_block,
)
from batuta.guardrails.response_format import ResponseFormatChecker

__all__ = [
    "DETECTORS",
    "NO_GUARDRAILS",
    "GroundedAction",
    "GroundedPolicy",
    "Guardrail",
    "GuardrailAction",
    "GuardrailResult",
    "GuardrailStage",
    "Guardrails",
    "ResponseFormatChecker",
    "build_detector",
    "describe_block",
]
