"""The log on Spark: reading, appending, projecting, archiving and auditing it.

Spark's workers import this for every source, so it names no more than they need.
"""

from __future__ import annotations

from seriatim.core.extras import explained

try:
    from seriatim.pipeline.source import SeriatimSource, register
except ModuleNotFoundError as error:
    raise explained(error) from error

__all__ = ["SeriatimSource", "register"]
