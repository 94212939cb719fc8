"""What limits the figures that fall short, as far as it is known; printed under them."""

_CLIENT = (
    "Python in the client: checks, packing, a future and a wake-up take about 100 us an append in "
    "one thread, and the server's statement about 70 us a row in groups of 32"
)
_BATCHES = "about 25 us an event to check and pack in Python, which has one core for all callers"
_STREAMS = (
    "two random pages of indexes for each stream, a look-up of its end, and one in the trigger"
)

# The beginning of a figure's name, and what holds it back.
LIMITS: dict[str, str] = {
    "singles, 1 caller": (
        "two changes of threads, and some 0.4 ms in which the server sets up an insert with eight "
        "indexes, checks and a trigger for one row"
    ),
    "singles, 32": _CLIENT,
    "singles, 128": _CLIENT,
    "batches of 100, few": _BATCHES,
    "batches of 1,000, few": _BATCHES,
    "batches of 100, many": _STREAMS,
    "batches of 1,000, many": _STREAMS,
    "import": "reading, checking and packing each event in Python, on one core",
    "plain beside worst": "the same two cores: the lock is not held longer for a context",
    "SQLite": "Python in the process: checks, the decision and a change of threads for each append",
}


def what_limits(name: str) -> str | None:
    """Return what is known to hold a figure back, by the longest beginning that fits."""
    fitting = [begin for begin in LIMITS if name.startswith(begin)]
    return LIMITS[max(fitting, key=len)] if fitting else None
