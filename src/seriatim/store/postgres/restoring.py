"""Storing the events of an archive exactly as they were."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.store.port import Restored, check_next
from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.packing import RowArray, RowArrayDumper, array_of, composite
from seriatim.store.postgres.statements import statements


def restore(connection: Connection, schema: str, hello: Hello, events: Sequence[Restored]) -> None:
    """Insert events that follow the head, under the log's lock."""
    named = statements(schema)
    rows = [
        composite(one.event, one.position - one.append_position, one.stream_seq, 0)
        for one in events
    ]
    values = {
        "head": events[0].position - 1,
        "rows": array_of(hello.row_array, hello.row_type, rows),
        "times": [one.recorded_us for one in events],
    }
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        cursor.execute(named["lock"], (hello.lock_key,))
        row = cursor.execute(named["head"]).fetchone()
        check_next(0 if row is None else int(row[0]), events)
        cursor.execute(named["restore_events"], values)
