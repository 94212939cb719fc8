"""The log on Spark: reading, appending, projecting, archiving and auditing it."""

from __future__ import annotations

from seriatim.pipeline.source import SeriatimSource, register

__all__ = ["SeriatimSource", "register"]
