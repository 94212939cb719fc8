"""Contexts of conditional appends: evaluated before the lock, and for the newest events under it.

The log is immutable and grows at its end only: what was found up to a head stays true. So a context
is evaluated in its caller's thread, and under the log's lock only events that came since are read,
as records and in one statement for all contexts. That part is bounded in events, bytes and time;
over a bound the append is checked again from the start, outside the lock, with a newer head.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from seriatim.core.decide import StaleContexts
from seriatim.core.errors import LimitExceeded
from seriatim.core.event import EventRecord
from seriatim.core.predicate import Document
from seriatim.core.query import Matcher, Query
from seriatim.core.request import ExpectedContext, Request

NEWEST_EVENTS_MAX = 5_000  # read for one tenant under the lock
NEWEST_BYTES_MAX = 8 * 1024 * 1024
LOCKED_S = 0.25  # for matching under the lock

ContextKey = tuple[str, bytes]
Version = int | None


class Seen(msgspec.Struct, frozen=True):
    """A context's version outside the lock: true for ever up to `head`."""

    head: int
    version: Version


def context_key(tenant_id: str, query: Query) -> ContextKey:
    """Return what tells two contexts apart."""
    return tenant_id, msgspec.json.encode(query.filters, order="deterministic")


def contexts_of(requests: Iterable[Request]) -> dict[ContextKey, Query]:
    """Return the contexts that appends depend on, equal ones once."""
    return {
        context_key(request.tenant_id, condition.query): condition.query
        for request in requests
        for condition in request.conditions
        if isinstance(condition, ExpectedContext)
    }


class LockedTime:
    """How long contexts have been evaluated while the lock is held."""

    def __init__(self, seconds: float = LOCKED_S) -> None:
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        """Raise `StaleContexts` when the others have waited long enough."""
        if time.monotonic() > self._until:
            raise StaleContexts


Verdict = int | LimitExceeded | StaleContexts | None


def newest_matches(
    newest: Iterable[EventRecord], contexts: Mapping[ContextKey, Query], spent: LockedTime
) -> dict[ContextKey, Verdict]:
    """Return the highest position that matches each context; `newest` are of one tenant.

    Contexts without a match are left out. A context whose predicates are too costly has its error,
    and all that time was too short for have `StaleContexts`.
    """
    found: dict[ContextKey, Verdict] = {}
    left = {key: Matcher(query) for key, query in contexts.items()}
    try:
        for record in newest:
            document = Document(record.payload, spent.check)
            spent.check()
            for key, matcher in list(left.items()):
                try:
                    if not matcher.matches(record, document):
                        continue
                    found[key] = record.position
                except LimitExceeded as error:
                    found[key] = error
                    document = Document(record.payload, spent.check)  # the others have their own
                del left[key]
            if not left:
                break
    except StaleContexts as stale:
        found.update(dict.fromkeys(left, stale))
    return found


class Contexts:
    """The contexts of one group of appends, as they are under the lock."""

    def __init__(self, requests: Sequence[Request], seen: Mapping[ContextKey, Seen]) -> None:
        self._queries = contexts_of(requests)
        self._seen = {key: seen.get(key, Seen(0, None)) for key in self._queries}
        self._found: dict[ContextKey, Verdict] = {
            key: one.version for key, one in self._seen.items()
        }
        self.spent = LockedTime()

    def behind(self, head: int) -> dict[str, int]:
        """Return the tenants whose contexts were seen at a lower head, each with the lowest."""
        found: dict[str, int] = {}
        for (tenant_id, _), seen in self._seen.items():
            if seen.head < head:
                found[tenant_id] = min(seen.head, found.get(tenant_id, head))
        return found

    def add_newest(
        self, tenant_id: str, newest: Iterable[EventRecord], *, complete: bool, head: int
    ) -> None:
        """Take the newest events of a tenant into account; incomplete ones only show changes."""
        mine = {
            key: query
            for key, query in self._queries.items()
            if key[0] == tenant_id and self._seen[key].head < head
        }
        matched = newest_matches(newest, mine, self.spent)
        for key in mine:
            if key in matched:
                found = matched[key]
                old = isinstance(found, int) and found <= self._seen[key].head
                self._found[key] = self._seen[key].version if old else found
            elif not complete:
                self._found[key] = StaleContexts()

    def version(self, tenant_id: str, query: Query) -> Version:
        """Return the version of a context, or raise why it is not known."""
        found = self._found[context_key(tenant_id, query)]
        if isinstance(found, Exception):
            raise found
        return found


def foreseen(requests: Iterable[Request]) -> dict[ContextKey, Seen]:
    """Return what the requests of a group saw of their contexts."""
    return {key: seen for request in requests for key, seen in (request.packed or {}).items()}


class AddedContexts:
    """What the appends of a group add to contexts, each event matched once with each of them."""

    def __init__(self, spent: LockedTime) -> None:
        self._spent = spent
        self._records: list[EventRecord] = []
        self._known: dict[ContextKey, tuple[Matcher, int, Version]] = {}

    def version(self, tenant_id: str, query: Query, added: Iterator[EventRecord]) -> Version:
        """Return the highest added position that matches; `added` yields what is new since."""
        self._records.extend(added)
        if not self._records:
            return None
        key = context_key(tenant_id, query)
        matcher, seen, version = self._known.get(key) or (Matcher(query), 0, None)
        for record in self._records[seen:]:
            self._spent.check()
            if record.tenant_id == tenant_id and matcher.matches(
                record, Document(record.payload, self._spent.check)
            ):
                version = record.position
        self._known[key] = matcher, len(self._records), version
        return version
