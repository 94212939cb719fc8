"""Spark integration: read, append, project, archive and audit a log on Spark.

Spark's workers import this package for every data source, so it imports only what they need.
"""

from __future__ import annotations

from seriatim.core.extras import explain_missing_module

try:
    from seriatim.pipeline.source.data_source import SeriatimSource, register
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

__all__ = ["SeriatimSource", "register"]
