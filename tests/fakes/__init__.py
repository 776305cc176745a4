"""Providers that run on loopback, check strictly what they receive, and misbehave on demand."""

from fakes.anthropic import FakeAnthropic
from fakes.gemini import FakeGemini
from fakes.openai import FakeOpenAI
from fakes.server import Fault, Fine, Said

__all__ = ["FakeAnthropic", "FakeGemini", "FakeOpenAI", "Fault", "Fine", "Said"]
