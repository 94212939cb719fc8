"""Built-in projection `activity`: events per type and hour, written with DataFrames."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core.projection import frame_projection


@frame_projection(
    "activity",
    key={"event_type": str, "hour": datetime},
    columns={"events": int, "payload_bytes": int, "first_position": int, "last_position": int},
    merge={
        "events": "sum",
        "payload_bytes": "sum",
        "first_position": "min",
        "last_position": "max",
    },
)
def activity(events: DataFrame) -> DataFrame:
    """Count events and payload bytes by tenant, type and hour of occurrence."""
    hour = f.date_trunc("hour", "occurred_at").alias("hour")
    return events.groupBy("tenant_id", "event_type", hour).agg(
        f.count("*").alias("events"),
        f.sum(f.octet_length("payload")).alias("payload_bytes"),
        f.min("position").alias("first_position"),
        f.max("position").alias("last_position"),
    )
