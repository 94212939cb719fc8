"""Hypothesis profiles: `pytest tests/property --hypothesis-profile=deep` runs more examples."""

from hypothesis import settings

settings.register_profile("deep", max_examples=2000)
