"""The log on Spark: reading, appending, projecting, archiving and auditing it.

Spark's workers import this for every source, so it names no more than they need.
"""

from __future__ import annotations

from seriatim.pipeline.source import SeriatimSource, register

__all__ = ["SeriatimSource", "register"]
