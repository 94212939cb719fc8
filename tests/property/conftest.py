"""Hypothesis profiles: `pytest tests/property --hypothesis-profile=deep` looks much longer."""

from hypothesis import settings

settings.register_profile("deep", max_examples=2000)
