"""Declarations stored in the log: stream kinds, event types and payload indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from seriatim.core.canonical import canonical_text, check_json, decode_stored_json
from seriatim.core.errors import Conflict, InvalidArgument, ValidationError
from seriatim.core.guard import Guard
from seriatim.core.ids import id_problem
from seriatim.core.indexes import (
    IndexedPath,
    PayloadIndex,
    StoredIndex,
    index_keys,
    parse_path,
    resolve_index,
    term_keys,
)

_INT32 = 1 << 31


class StreamKind(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of all streams of one type."""

    # This docstring and that of `EventType` are also descriptions in the OpenAPI document.
    name: str  # the stream type
    first_seq: Literal[0, 1] = 1  # the sequence number of the first event
    numbered_by: Literal["log", "caller"] = "log"  # who assigns sequence numbers
    opening_type: str | None = None  # the type that the first event, and no other, must have
    closing_types: tuple[str, ...] = ()  # types after which a stream takes no more appends
    catalogue: Literal["open", "closed"] = "open"  # closed: only declared types of this kind
    expected_seq_required: bool = False  # appends to an existing stream need an ExpectedSeq
    infrastructure: bool = False  # the streams belong to the reserved infrastructure tenant


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the catalogue: an event type at one version, with its JSON schema if any."""

    event_type: str
    event_version: int = 1  # the version of the payload, from 1
    kind: str | None = None  # the stream kind whose closed catalogue the type belongs to
    schema: dict[str, Any] | None = None  # the JSON schema of the payload


class ProfileKind(msgspec.Struct, frozen=True, kw_only=True):
    """A stream kind that a profile defines, with the rules for its events.

    The rules hold for every append to a stream of this kind, through any profile.

    Attributes:
        kind: The stream kind.
        profile: The name of the profile.
        event_types: The event types of the kind, if its catalogue is closed.
        required: The envelope fields that must be set.
        key_required: Whether each event needs an idempotency key.
        actor_types: The allowed actor types; empty allows any.
        floats: Whether payloads may contain floating-point numbers.
        check_payload: Raises `ValidationError` for the payload of an event type; replaces the
            schemas of the catalogue.
        guard: The guard that scans the events, instead of the guard of the log.
        guarded_fields: The envelope fields that the guard scans, besides payload, tags and key.
    """

    kind: StreamKind
    profile: str
    event_types: tuple[str, ...]
    required: tuple[str, ...]
    key_required: bool
    actor_types: tuple[str, ...]
    floats: bool
    check_payload: Callable[[str, Any], None]
    guard: Guard
    guarded_fields: tuple[str, ...]


DEFAULT_STREAM_KIND = StreamKind(name="aggregate")  # the kind of undeclared stream types
# By stream type: the kinds that every log has, and those of profiles. `register_kind` adds to both.
BUILT_IN_KINDS = {DEFAULT_STREAM_KIND.name: DEFAULT_STREAM_KIND}
PROFILE_KINDS: dict[str, ProfileKind] = {}


def register_kind(profile_kind: ProfileKind) -> None:
    """Register a profile's stream kind, when the module of the profile is imported.

    Raises:
        Conflict: A different kind with this name is built in.
    """
    name = profile_kind.kind.name
    if BUILT_IN_KINDS.get(name, profile_kind.kind) != profile_kind.kind:
        raise _redeclaration_error("stream kind", name)
    PROFILE_KINDS[name] = profile_kind
    BUILT_IN_KINDS[name] = profile_kind.kind
    BUILT_IN_KINDS[DEFAULT_STREAM_KIND.name] = BUILT_IN_KINDS.pop(DEFAULT_STREAM_KIND.name)  # last


def check_kind(kind: StreamKind) -> None:
    """Raise `InvalidArgument` for a stream kind with an invalid name or value."""
    for field in ("name", "opening_type"):
        value = getattr(kind, field)
        if (field == "name" or value is not None) and (problem := id_problem(value)):
            raise _declaration_error(f"kind.{field}", problem)
    if not isinstance(kind.closing_types, tuple):
        raise _declaration_error("kind.closing_types", "must be a tuple of event types")
    for closing in kind.closing_types:
        if problem := id_problem(closing):
            raise _declaration_error("kind.closing_types", problem)
    allowed = {
        "first_seq": (0, 1),
        "numbered_by": ("log", "caller"),
        "catalogue": ("open", "closed"),
        "expected_seq_required": (False, True),
        "infrastructure": (False, True),
    }
    for field, values in allowed.items():
        value = getattr(kind, field)
        if value not in values or type(value) is not type(values[0]):
            raise _declaration_error(f"kind.{field}", f"must be one of {values}")


def check_event_type(entry: EventType) -> None:
    """Raise `InvalidArgument` for a catalogue entry with an invalid field."""
    if problem := id_problem(entry.event_type):
        raise _declaration_error("event_type", problem)
    if type(entry.event_version) is not int or not 1 <= entry.event_version < _INT32:
        raise _declaration_error("event_version", "must be a whole number from 1")
    if entry.kind is not None and (problem := id_problem(entry.kind)):
        raise _declaration_error("kind", problem)
    if entry.kind in PROFILE_KINDS:
        problem = f"must not be {entry.kind}: the {entry.kind} catalogue is fixed"
        raise _declaration_error("kind", problem)
    try:
        check_json(entry.schema)
    except ValidationError as problem:
        raise _declaration_error("schema", str(problem)) from None


def _declaration_error(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {problem}", details={"argument": field})


class Rules:
    """All declarations of one log at one version; each new declaration raises `version`.

    An instance is immutable. An append carries the version that it was validated with, and the
    store rejects it with `StaleRules` if another process has declared more since.
    """

    def __init__(
        self,
        kinds: tuple[StreamKind, ...],
        types: tuple[EventType, ...],
        version: int = 0,
        indexes: tuple[StoredIndex, ...] = (),
    ) -> None:
        self.version = version
        # Without declarations share the dict: `NO_RULES` is made before profiles register kinds.
        self.kinds = (
            {**BUILT_IN_KINDS, **{kind.name: kind for kind in kinds}} if kinds else BUILT_IN_KINDS
        )
        self.requires_expected_seq = any(kind.expected_seq_required for kind in kinds)
        self.types = {(entry.event_type, entry.event_version): entry for entry in types}
        self._versions: dict[str, set[int]] = {}
        for entry in types:
            self._versions.setdefault(entry.event_type, set()).add(entry.event_version)
        self.indexes = indexes
        self.indexed_paths: dict[str, tuple[IndexedPath, ...]] = {}
        for index in indexes:
            paths = self.indexed_paths.get(index.event_type, ())
            self.indexed_paths[index.event_type] = (*paths, resolve_index(index))

    @property
    def declared_kinds(self) -> list[StreamKind]:
        """The kinds that the log stores, without the built-in ones."""
        return [kind for kind in self.kinds.values() if BUILT_IN_KINDS.get(kind.name) != kind]

    def kind_of(self, stream_type: str) -> StreamKind:
        """Return the kind of a stream type; undeclared types follow the `aggregate` kind."""
        return self.kinds.get(stream_type, DEFAULT_STREAM_KIND)

    def versions_of(self, event_type: str) -> set[int]:
        """Return the declared versions of an event type; empty if it is not declared."""
        return self._versions.get(event_type, set())

    def has_kind(self, kind: StreamKind) -> bool:
        """Return whether a kind is declared; raise `Conflict` if it is declared differently."""
        declared = self.kinds.get(kind.name)
        if declared is not None and declared != kind:
            raise _redeclaration_error("stream kind", kind.name)
        return declared is not None

    def has_type(self, entry: EventType) -> bool:
        """Return whether an entry is declared; raise `Conflict` if it is declared differently."""
        declared = self.types.get((entry.event_type, entry.event_version))
        if declared is None:
            return False
        same_schema = canonical_text(declared.schema) == canonical_text(entry.schema)
        if declared.kind != entry.kind or not same_schema:
            raise _redeclaration_error("event type", f"{entry.event_type} v{entry.event_version}")
        return True

    def row_index_keys(
        self, row: tuple[int, str, str, str | None, str | None]
    ) -> tuple[bytes, ...]:
        """Return the index keys of a stored row: position, tenant, event type, tags and payload."""
        position, tenant_id, event_type, tags, payload = row
        paths = [path for path in self.indexed_paths.get(event_type, ()) if path.since < position]
        try:
            terms = term_keys(tenant_id, event_type, paths, payload) if paths and payload else ()
        except (ValueError, RecursionError):
            terms = ()  # a damaged payload is reported by other checks
        return index_keys(tenant_id, decode_stored_json(tags) if tags else (), terms)

    def has_index(self, index: PayloadIndex) -> bool:
        """Return whether a path is indexed, in any spelling."""
        steps = parse_path(index.path)
        return any(path.steps == steps for path in self.indexed_paths.get(index.event_type, ()))


def _redeclaration_error(what: str, name: str) -> Conflict:
    msg = f"{what} {name!r} is already declared differently; a changed payload needs a new version"
    return Conflict(msg, details={"name": name})


NO_RULES = Rules((), ())

Declaration = StreamKind | EventType | PayloadIndex


def closed_catalogue(rules: Rules, kind: StreamKind) -> tuple[str, ...]:
    """Return the event types that a closed kind accepts."""
    if kind.name in PROFILE_KINDS:
        return PROFILE_KINDS[kind.name].event_types
    return tuple({entry.event_type for entry in rules.types.values() if entry.kind == kind.name})
