"""F7: a single append writes few pages, whatever the size of the log; the WAL counts them."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from seriatim import NewEvent

APPENDS = 200
WAL_HEADER, FRAME_HEADER = 32, 24  # bytes
SPLITS = 0.6  # pages per append: new pages, and the pages above them


def count_pages(path: Path, append: Callable[[], object]) -> float:
    """Return how many pages an append writes."""
    for _ in range(APPENDS):
        append()
    with sqlite3.connect(path) as connection:
        (page_bytes,) = connection.execute("pragma page_size").fetchone()
        connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    for _ in range(APPENDS):
        append()
    frames = (Path(f"{path}-wal").stat().st_size - WAL_HEADER) / (int(page_bytes) + FRAME_HEADER)
    return frames / APPENDS


@pytest.mark.parametrize(
    ("stream_id", "pages"),
    [
        (None, 4),  # table, id, tenant, type
        ("one", 6),  # and stream, and its types after 100 events
        ("o-{}", 6),  # and stream, and the list of streams
    ],
    ids=["no stream", "one stream", "new streams"],
)
def test_an_append_writes_one_page_of_each_index(
    tmp_path: Path, stream_id: str | None, pages: int
) -> None:
    """F7: an append writes the table's last page and one page of each index that covers it."""
    path = tmp_path / "log.db"
    with seriatim.open(f"sqlite:///{path}") as log:

        def append() -> None:
            stream = None if stream_id is None else ("order", stream_id.format(log.head()))
            log.append([NewEvent("placed", {"n": 1}, stream)])

        written = count_pages(path, append)

    assert pages <= written <= pages + SPLITS
