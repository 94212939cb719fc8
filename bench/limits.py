"""What limits the figures that fall short, as far as it is known; printed under them."""

_CLIENT = (
    "Python in the client: some 60 us of work an append, which take 100 us while the server works "
    "beside it on these two cores; the server needs some 60 us a row in groups of 16, 40 in groups "
    "of 64, a third of it for the indexes"
)
_BATCHES = "about 25 us an event to check and pack in Python, which has one core for all callers"
_STREAMS = (
    "two random pages of indexes for each stream, a look-up of its end, and one in the trigger"
)

# The beginning of a figure's name, and what holds it back.
LIMITS: dict[str, str] = {
    "singles, 1 caller": (
        "0.3 ms of Python that runs cold after each wait, and 0.4 ms in which the server sets up "
        "an insert with seven indexes, checks and a trigger for one row"
    ),
    "append beside a tenant at its bounds": (
        "one interpreter lock: the event loop shares it with the threads that parse, check and "
        "match for the flooding tenant, and the log's one writer also stores that tenant's appends"
    ),
    "/health beside a tenant at its bounds": (
        "one interpreter lock: the event loop waits for the threads that parse, check and match "
        "for the flooding tenant, and for its own refusals of that tenant's requests"
    ),
    "memory growth by a tenant at its bounds": (
        "the tenant's memory of 128 MiB, up to 32 MiB of work in progress, and copies that are "
        "made while bodies are read and answers are written"
    ),
    "singles, 32": _CLIENT,
    "singles, 128": _CLIENT,
    "batches of 100, few": _BATCHES,
    "batches of 1,000, few": _BATCHES,
    "batches of 100, many": _STREAMS,
    "batches of 1,000, many": _STREAMS,
    "import": "reading, checking and packing each event in Python, on one core",
    "throughput at": (
        "pages of the indexes that no longer fit the server's 1 GB of buffers: the log of 10 M "
        "events has 15 GB, 6 of them for tags and payload indexes"
    ),
    "plain beside worst": "the same two cores: the lock is not held longer for a context",
    "SQLite": (
        "Python in the process: checks, packing and, for tasks, a change of threads; and some six "
        "pages written for an append where the bare loop writes one"
    ),
    "batch read / COPY": (
        "two cores for everything: of some 8 us an event the server takes 2.3, the driver and "
        "Arrow 3, and Spark 2.8 to make rows of 27 columns, which nobody asked COPY for"
    ),
    "rebuild by fold": (
        "the same Python folds on both sides: 4 us an event, and 5 to read it; the second core "
        "also has the server's work to do"
    ),
    "catch-up at": (
        "Spark's two notes for each batch, 0.1 to 0.2 s, and the start of its tasks, beside 0.9 s "
        "for 200,000 events"
    ),
    "HTTP singles / no-op": (
        "an append takes 220 us where the no-op takes 98: checks, hash and packing as in process, "
        "and the server and the load work on the same two cores"
    ),
    "client singles": (
        "every event is checked twice, in the client and again in the service, some 100 us each, "
        "on two cores that Postgres shares"
    ),
    "HTTP batches": "parsing, checking and packing in Python, in one process",
    "append beside a tenant's flood": (
        "one event loop and two cores for both tenants, the load and Postgres"
    ),
    "live, append to row": (
        "a task in a Python process and a frame collected to the driver, where the rate source "
        "makes its row in the JVM"
    ),
}


def what_limits(name: str) -> str | None:
    """Return what is known to hold a figure back, by the longest beginning that fits."""
    fitting = [begin for begin in LIMITS if name.startswith(begin)]
    return LIMITS[max(fitting, key=len)] if fitting else None
