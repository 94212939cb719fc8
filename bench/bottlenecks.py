"""Known bottlenecks of the figures that miss their goal, printed with them."""

_CLIENT = (
    "Python in the client: 40 to 50 us of processor time per append, on one core for all tasks; "
    "the server takes 30 us per row in groups of 16 and 15 us in groups of 64"
)
_THREADS = (
    "Python in the client: about 70 us of processor time per append, and the interpreter lock, "
    "which each caller waits for before and after its append"
)
_BATCHES = (
    "validation and encoding in Python take about 25 us per event on one core for all callers"
)
_STREAMS = (
    "two random index pages per stream, a lookup of its last event, and another in the trigger"
)

# By the beginning of a figure's name.
BOTTLENECKS: dict[str, str] = {
    "singles, 1 caller": (
        "processor time with cold caches after each wait: about 0.15 ms of Python, and 0.2 ms in "
        "which the server checks the event and inserts it into nine indexes, three of them for the "
        "payload indexes that this log declares"
    ),
    "append beside a tenant at its bounds": (
        "the interpreter lock: the event loop shares it with the threads that parse, validate and "
        "match for the flooding tenant, whose appends use the same writer of the log"
    ),
    "/health beside a tenant at its bounds": (
        "the interpreter lock: the event loop waits for the threads that parse, validate and match "
        "for the flooding tenant, and for its own refusals of that tenant's requests"
    ),
    "memory growth by a tenant at its bounds": (
        "the tenant's memory of 128 MiB, up to 32 MiB of work in progress, and copies made while "
        "request bodies are read and responses are written"
    ),
    "singles, 32 tasks": _CLIENT,
    "singles, 128 tasks": _CLIENT,
    "singles, 32 threads": _THREADS,
    "singles, 128 threads": _THREADS,
    "batches of 100, few": _BATCHES,
    "batches of 1,000, few": _BATCHES,
    "batches of 100, many": _STREAMS,
    "batches of 1,000, many": _STREAMS,
    "import": "parsing, validation and encoding of each event in Python, on one core",
    "throughput at": (
        "index pages that do not fit into 1 GB of shared buffers: the log of 10 M events has "
        "15 GB, 6 GB of it for tags and payload indexes"
    ),
    "plain beside worst": "both callers share two cores; the lock is not held longer for a context",
    "SQLite": (
        "six or seven pages written per append where the bare loop writes two; for tasks and "
        "threads about 65 us of Python per append, in turn with the writing thread"
    ),
    "batch read / COPY": (
        "two cores for everything: of about 8 us per event the server takes 2.3, the driver and "
        "Arrow 3, and Spark 2.8 to build rows of 27 columns, which COPY does not do"
    ),
    "rebuild by fold": (
        "both sides run the same fold in Python: 4 us per event, and 5 us to read it; the second "
        "core is shared with the server"
    ),
    "catch-up at": (
        "the two checkpoint writes of Spark per batch, 0.1 to 0.2 s, and the start of its tasks, "
        "in addition to 0.9 s for 200,000 events"
    ),
    "HTTP singles / no-op": (
        "an append takes 160 us of the service, the no-op 66 us: validation, hash and encoding as "
        "in process; and Postgres and the load generator share the two cores"
    ),
    "client singles": (
        "an append takes 57 us of the client, 90 us of the service and 40 us of Postgres, on two "
        "cores; the client validates it too, so that a secret does not leave the process"
    ),
    "HTTP batches": "parsing, validation and encoding in Python, in one process",
    "append beside a tenant's flood": (
        "one event loop and two cores for both tenants, the load generator and Postgres"
    ),
    "local live, append to row p50 / bare append p50, Postgres": (
        "a second durable commit of rows and cursor (0.6 ms alone), after a notification, a read "
        "of the log (0.4 ms) and a look-up of the new key's state (0.15 ms), one after the other"
    ),
    "live, append to row": (
        "a task in a Python process and a frame collected to the driver, whereas the rate source "
        "creates its row in the JVM"
    ),
}


def find_bottleneck(name: str) -> str | None:
    """Return the known bottleneck of a figure, by the longest matching prefix of its name."""
    prefixes = [prefix for prefix in BOTTLENECKS if name.startswith(prefix)]
    return BOTTLENECKS[max(prefixes, key=len)] if prefixes else None
