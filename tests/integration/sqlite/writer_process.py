"""A program that appends to a log and prints the position of each acknowledged append.

Usage: writer_process.py PATH COUNT NAME [FILE_BYTES_MAX]
"""

import resource
import sys

from seriatim.core.errors import BackendFailure
from seriatim.core.event import NewEvent
from seriatim.core.ids import uuid7
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender


def main() -> None:
    """Append until the count is reached or the process is killed."""
    path, count, name, *limit = sys.argv[1:]
    numbers = iter(range(int(count) + 1))
    appender = StoreAppender(lambda: uuid7(1_700_000_000_000, hash(name) % 2**40 + next(numbers)))
    store = SqliteStore(path)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
    for number in range(int(count)):
        event = NewEvent("t", {"by": name, "n": number, "pad": "x" * 300}, stream=("by", name))
        try:
            result = appender.append(store, event)
        except BackendFailure as failure:
            print_line(f"failed {failure.ambiguous} {failure.retryable} {failure.message}")
            break
        print_line(str(result.first_position))


def print_line(line: str) -> None:
    """Print a line for the parent process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
