"""Evaluation of the contexts that conditional appends depend on.

The log is immutable and append-only, so the version of a context up to some head never changes. A
context is therefore evaluated in the caller's thread, before the log's lock is taken. Under the
lock only newer events are read, in one statement for all contexts of a group. That part is limited
in events, bytes and time; over a limit, the append is evaluated again outside the lock with a newer
head.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from seriatim.core.decide import StaleContexts
from seriatim.core.errors import LimitExceeded
from seriatim.core.event import EventRecord
from seriatim.core.predicate import PayloadDocument
from seriatim.core.query import Matcher, Query
from seriatim.core.request import AppendRequest, ExpectedContext

NEWEST_EVENTS_MAX = 5_000  # events read for one tenant under the lock
NEWEST_BYTES_MAX = 8 * 1024 * 1024
LOCK_BUDGET_S = 0.25  # seconds of matching under the lock

ContextKey = tuple[str, bytes]
Version = int | None


class EvaluatedContext(msgspec.Struct, frozen=True):
    """The version of a context up to `head`, evaluated without the lock."""

    head: int
    version: Version


def make_context_key(tenant_id: str, query: Query) -> ContextKey:
    """Return the key under which equal contexts are evaluated once."""
    return tenant_id, msgspec.json.encode(query.filters, order="deterministic")


def collect_contexts(requests: Iterable[AppendRequest]) -> dict[ContextKey, Query]:
    """Return the distinct contexts that appends depend on."""
    return {
        make_context_key(request.tenant_id, condition.query): condition.query
        for request in requests
        for condition in request.conditions
        if isinstance(condition, ExpectedContext)
    }


class LockBudget:
    """The time that may be spent on matching contexts while the lock is held."""

    def __init__(self, seconds: float = LOCK_BUDGET_S) -> None:
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        """Raise `StaleContexts` when the time is used up, so that other writers can proceed."""
        if time.monotonic() > self._until:
            raise StaleContexts


ContextResult = int | LimitExceeded | StaleContexts | None


def match_newest_events(
    newest: Iterable[EventRecord], contexts: Mapping[ContextKey, Query], budget: LockBudget
) -> dict[ContextKey, ContextResult]:
    """Return the highest matching position of each context that matches any of the events.

    Args:
        newest: Events of one tenant, newest first.
        contexts: The contexts to match.
        budget: The time left under the lock.

    Returns:
        A position per context; the error for a context whose predicates are too costly; and
        `StaleContexts` for contexts that were not finished in time. Contexts without a match are
        omitted.

    """
    results: dict[ContextKey, ContextResult] = {}
    pending = {key: Matcher(query) for key, query in contexts.items()}
    try:
        for record in newest:
            document = PayloadDocument(record.payload_json, budget.check)
            budget.check()
            # Newest first, so the first match of a context is its version, and it is done.
            for key, matcher in list(pending.items()):
                try:
                    if not matcher.matches(record, document):
                        continue
                    results[key] = record.position
                except LimitExceeded as error:
                    results[key] = error
                    # A document limits the cost of its matches; the other contexts get a new one.
                    document = PayloadDocument(record.payload_json, budget.check)
                del pending[key]
            if not pending:
                break
    except StaleContexts as stale:
        results.update(dict.fromkeys(pending, stale))
    return results


class GroupContexts:
    """The versions of the contexts of one group of appends, completed under the lock."""

    def __init__(
        self, requests: Sequence[AppendRequest], evaluated: Mapping[ContextKey, EvaluatedContext]
    ) -> None:
        self._queries = collect_contexts(requests)
        self._evaluated = {
            key: evaluated.get(key, EvaluatedContext(0, None)) for key in self._queries
        }
        self._results: dict[ContextKey, ContextResult] = {
            key: context.version for key, context in self._evaluated.items()
        }
        self.lock_budget = LockBudget()

    def find_stale_tenants(self, head: int) -> dict[str, int]:
        """Return tenants with contexts evaluated before `head`, each with its lowest such head."""
        lowest: dict[str, int] = {}
        for (tenant_id, _), evaluated in self._evaluated.items():
            if evaluated.head < head:
                lowest[tenant_id] = min(evaluated.head, lowest.get(tenant_id, head))
        return lowest

    def add_newest_events(
        self, tenant_id: str, newest: Iterable[EventRecord], *, complete: bool, head: int
    ) -> None:
        """Update a tenant's contexts with the events appended since they were evaluated.

        Args:
            tenant_id: The tenant.
            newest: Its events after the lowest evaluated head, newest first.
            complete: Whether `newest` contains all of them. If not, a context without a match is
                unknown, and its append is evaluated again.
            head: The head under the lock.

        """
        stale = {
            key: query
            for key, query in self._queries.items()
            if key[0] == tenant_id and self._evaluated[key].head < head
        }
        matched = match_newest_events(newest, stale, self.lock_budget)
        for key in stale:
            if key in matched:
                result = matched[key]
                evaluated = self._evaluated[key]
                # The events start at the lowest head of the tenant's contexts. A match up to this
                # context's own head is part of its version already.
                included = isinstance(result, int) and result <= evaluated.head
                self._results[key] = evaluated.version if included else result
            elif not complete:
                self._results[key] = StaleContexts()

    def version(self, tenant_id: str, query: Query) -> Version:
        """Return the version of a context.

        Raises:
            LimitExceeded: The predicates of the query are too costly.
            StaleContexts: Too many events were appended since the context was evaluated.

        """
        result = self._results[make_context_key(tenant_id, query)]
        if isinstance(result, Exception):
            raise result
        return result


def collect_evaluated_contexts(
    requests: Iterable[AppendRequest],
) -> dict[ContextKey, EvaluatedContext]:
    """Return the contexts that the requests of a group evaluated before the lock."""
    return {
        key: evaluated for request in requests for key, evaluated in (request.encoded or {}).items()
    }


class AddedMatches:
    """Context matches among the events that a group itself adds; each pair is matched once."""

    def __init__(self, budget: LockBudget) -> None:
        self._budget = budget
        self._records: list[EventRecord] = []
        self._matched: dict[ContextKey, tuple[Matcher, int, Version]] = {}

    def version(self, tenant_id: str, query: Query, added: Iterator[EventRecord]) -> Version:
        """Return the highest matching position among all added events.

        Args:
            tenant_id: The tenant of the context.
            query: The query of the context.
            added: The events added since the previous call.

        """
        self._records.extend(added)
        if not self._records:
            return None
        key = make_context_key(tenant_id, query)
        matcher, checked, version = self._matched.get(key) or (Matcher(query), 0, None)
        for record in self._records[checked:]:
            self._budget.check()
            if record.tenant_id == tenant_id and matcher.matches(
                record, PayloadDocument(record.payload_json, self._budget.check)
            ):
                version = record.position
        self._matched[key] = matcher, len(self._records), version
        return version
