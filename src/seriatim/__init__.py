"""Seriatim: an ordered, idempotent, replayable event log for Python, on the Postgres you run.

Open a log with `seriatim.open(url)`. The log appends `NewEvent` values and returns `EventRecord`
values. For details, see `help(seriatim.Log)`, `help(seriatim.Log.read)` and so on:

    append, decide               write events, on conditions (`ExpectedSeq`, `ExpectedContext`)
    read, read_stream, query     read events, by filters or by a `Query`
    tail, subscribe              follow the log
    declare, catalogue           declare stream kinds, event types and their classes
    aio                          the same calls for asyncio
    traces, facts, aggregates    profiles with names and rules of their own (`Aggregate`)
    projections                  run and follow read models (`projection`), wait for them
    handlers                     run and follow functions whose effects happen once (`handler`)

`open_registry` opens the registry of processed events for consumers of your own. All errors are
subclasses of `SeriatimError`.

Example:
    import seriatim

    with seriatim.open("memory:") as log:
        receipt = log.append([seriatim.NewEvent("order.placed", {"total": 12})])
        for record in log.read():
            print(record.position, record.event_type, record.payload)
"""

from seriatim.config import Settings
from seriatim.config.delivery import RegistrySettings
from seriatim.core.builtin_folds import aggregate_states, decision_graph
from seriatim.core.errors import (
    BackendFailure,
    ConditionalAppendConflict,
    Conflict,
    EmptyAppend,
    EventNotSettled,
    EventSequenceInvalid,
    Forbidden,
    IdempotencyConflict,
    IdempotencyKeyReuse,
    InvalidArgument,
    InvalidEvent,
    InvalidQuery,
    LeaseLost,
    LimitExceeded,
    LogIdentityChanged,
    NotFound,
    PiiPolicyViolation,
    ProjectionFailed,
    ProjectionOutOfDate,
    ProjectionTimeout,
    SchemaViolation,
    SeriatimError,
    SubscriptionParked,
    TimedOut,
    Unauthorized,
)
from seriatim.core.event import AppendResult, EventRecord, LogIdentity, NewEvent
from seriatim.core.explanation import ExplainedStep, Explanation
from seriatim.core.handler import Delivery, Handler, RetryPolicy, handler
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.limits import Limits
from seriatim.core.projection import Projection, Table, frame_projection, projection
from seriatim.core.query import Filter, Query
from seriatim.core.request import Command, ExpectedContext, ExpectedSeq
from seriatim.delivery.documents import documents
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.handler_loop import Counts
from seriatim.delivery.registry import Registry
from seriatim.factory import Log, open_registry
from seriatim.factory import open_log as open  # noqa: A004 - callers write seriatim.open
from seriatim.log.catalogue import Catalogue
from seriatim.log.export_format import ExportFooter, export_log
from seriatim.log.importer import ImportReport, import_events
from seriatim.log.verification import VerificationReport, verify
from seriatim.profiles.aggregate_class import Aggregate
from seriatim.runs.follower import AsyncFollower, Follower, RunHealth
from seriatim.runs.job_loop import RunReport
from seriatim.runs.rebuild import Proof
from seriatim.store.readmodel.port import Progress

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AppendResult",
    "AsyncFollower",
    "BackendFailure",
    "Catalogue",
    "Command",
    "ConditionalAppendConflict",
    "Conflict",
    "Counts",
    "Delivery",
    "EmptyAppend",
    "EntryFilter",
    "EventNotSettled",
    "EventRecord",
    "EventSequenceInvalid",
    "EventType",
    "ExpectedContext",
    "ExpectedSeq",
    "ExplainedStep",
    "Explanation",
    "ExportFooter",
    "Filter",
    "Follower",
    "Forbidden",
    "Handler",
    "IdempotencyConflict",
    "IdempotencyKeyReuse",
    "ImportReport",
    "InvalidArgument",
    "InvalidEvent",
    "InvalidQuery",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "Log",
    "LogIdentity",
    "LogIdentityChanged",
    "NewEvent",
    "NotFound",
    "PayloadIndex",
    "PiiPolicyViolation",
    "Progress",
    "Projection",
    "ProjectionFailed",
    "ProjectionOutOfDate",
    "ProjectionTimeout",
    "Proof",
    "Query",
    "Registry",
    "RegistrySettings",
    "RetryPolicy",
    "RunHealth",
    "RunReport",
    "SchemaViolation",
    "SeriatimError",
    "Settings",
    "StreamKind",
    "SubscriptionParked",
    "Table",
    "TimedOut",
    "Unauthorized",
    "VerificationReport",
    "aggregate_states",
    "decision_graph",
    "documents",
    "export_log",
    "frame_projection",
    "handler",
    "import_events",
    "open",
    "open_registry",
    "projection",
    "verify",
]
