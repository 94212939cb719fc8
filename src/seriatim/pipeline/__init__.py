"""The log on Spark: reading, appending, projecting, archiving and auditing it."""

from __future__ import annotations

from seriatim.pipeline.events import events
from seriatim.pipeline.sink import AppendReport, append_frame
from seriatim.pipeline.source import SeriatimSource, register

__all__ = ["AppendReport", "SeriatimSource", "append_frame", "events", "register"]
