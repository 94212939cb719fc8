"""Plan a query: choose the index keys with which a store finds matching events."""

from __future__ import annotations

from typing import Literal

import msgspec

from seriatim.core.ids import tag_key
from seriatim.core.indexes import is_scalar_only, required_scalars, term_key
from seriatim.core.kinds import Rules
from seriatim.core.patterns import NameFilter
from seriatim.core.query import LIST_FIELDS, Filter, Query

MAX_ALTERNATIVES = 64  # pairs of event type and predicate; each is an index scan of its own
MAX_TERMS = 8  # keys of one scan; the filter is evaluated on what they find

IndexKeys = tuple[bytes, ...]
IndexName = Literal[
    "correlation", "causation", "actor", "payload", "tag", "stream", "type", "tenant"
]
_RELATED: tuple[tuple[str, IndexName], ...] = (
    ("correlation_id", "correlation"),
    ("causation_id", "causation"),
)


class AccessPath(msgspec.Struct, frozen=True):
    """How to find the events that match one filter in a range of positions.

    Attributes:
        filter: The filter.
        after: The exclusive start of the range.
        until: The inclusive end of the range.
        key_alternatives: Sets of index keys; a matching event has all keys of at least one set.
            Tags are always among the keys. Empty if no such index applies.
        tag_keys: The keys of the tags, if the path does not follow keys: each must be looked up.
        exact: Whether every event that has all keys of a set also matches, so that the filter need
            not be evaluated.
    """

    filter: Filter
    after: int
    until: int
    key_alternatives: tuple[IndexKeys, ...] = ()
    tag_keys: IndexKeys = ()
    exact: bool = False

    @property
    def types(self) -> NameFilter | None:
        """The event types of the filter, or None if it does not restrict them."""
        return _get_type_filter(self.filter)

    @property
    def index(self) -> IndexName:
        """The index that finds the events; `tenant` is the index of all events of a tenant."""
        if (related := _find_related_index(self.filter)) is not None:
            return related
        if self.key_alternatives:
            tags = len(set(self.filter.tags or ()))
            return "tag" if len(self.key_alternatives[0]) == tags else "payload"
        if self.filter.streams is not None:
            return "stream"
        if self.filter.actor_id is not None:
            return "actor"
        return "tenant" if self.types is None else "type"


class _IndexTerms(msgspec.Struct, frozen=True):
    """The index keys of one event type that a predicate requires."""

    since: dict[bytes, int]  # by key: the position after which its index is complete
    exact: bool  # whether having these keys is equivalent to the predicate

    def usable_after(self, low: int) -> IndexKeys:
        """Return the keys whose indexes are complete after a position."""
        return tuple(key for key, since in self.since.items() if since <= low)[:MAX_TERMS]


def plan_query(
    tenant_id: str, query: Query, rules: Rules, after: int, until: int
) -> list[AccessPath]:
    """Return access paths that together find every matching event, newest range first.

    An index contains only events that were appended after its declaration, so the range of a
    filter is split at the declarations of the indexes that it can use.

    Args:
        tenant_id: The tenant whose events are queried.
        query: A validated query.
        rules: The declarations of the log, with its payload indexes.
        after: The exclusive start of the range.
        until: The inclusive end of the range.
    """
    paths: list[AccessPath] = []
    for query_filter in query.filters or (Filter(),):
        lists = [getattr(query_filter, name) for name in LIST_FIELDS]
        if any(values is not None and not values for values in lists):
            continue  # an empty list matches nothing
        tags = tuple(dict.fromkeys(tag_key(tenant_id, tag) for tag in query_filter.tags or ()))
        if _find_related_index(query_filter) is not None:
            paths.append(AccessPath(query_filter, after, until, tag_keys=tags))
            continue
        terms_of_pairs = _find_indexed_terms(tenant_id, query_filter, rules)
        starts = {since for terms in terms_of_pairs for since in terms.since.values()}
        high = until
        splits = sorted((start for start in starts if after < start < until), reverse=True)
        for low in (*splits, after):
            paths.append(_build_path(query_filter, low, high, tags, terms_of_pairs))
            high = low
    return paths


def _find_related_index(query_filter: Filter) -> IndexName | None:
    """Return the index of a correlation or causation id, which few events have, or None."""
    return next(
        (index for name, index in _RELATED if getattr(query_filter, name) is not None), None
    )


def _get_type_filter(query_filter: Filter) -> NameFilter | None:
    names = None if query_filter.types is None else NameFilter.parse(query_filter.types)
    return None if names is None or names.matches_all else names


def _find_indexed_terms(tenant_id: str, query_filter: Filter, rules: Rules) -> list[_IndexTerms]:
    """Return the usable index keys of each pair of event type and predicate.

    The result is empty unless every pair has a key. It is also empty for a filter with streams,
    which have an index of their own and are mostly shorter than the list of a key, and for a
    pattern, which may match types without an index.
    """
    types = _get_type_filter(query_filter) or NameFilter()
    predicates = query_filter.payload or ()
    if types.prefixes or query_filter.streams is not None:
        return []
    if len(types.values) * len(predicates) > MAX_ALTERNATIVES:
        return []
    terms_of_pairs: list[_IndexTerms] = []
    for event_type in types.values:
        paths = {path.steps: path for path in rules.indexed_paths.get(event_type, ())}
        if not paths:
            return []
        for predicate in predicates:
            required = list(required_scalars(predicate))
            since = {
                term_key(tenant_id, event_type, paths[steps].text, scalar): paths[steps].since
                for steps, scalar in required
                if steps in paths
            }
            if not since:
                return []
            exact = is_scalar_only(predicate) and all(steps in paths for steps, _ in required)
            terms_of_pairs.append(_IndexTerms(since, exact))
    return terms_of_pairs


def _build_path(
    query_filter: Filter, low: int, high: int, tags: IndexKeys, terms_of_pairs: list[_IndexTerms]
) -> AccessPath:
    """Build the access path of a range from the indexes that are complete after `low`."""
    usable = [terms.usable_after(low) for terms in terms_of_pairs]
    if usable and all(usable):
        exact = query_filter.actor_id is None and all(
            terms.exact and len(keys) == len(terms.since)
            for terms, keys in zip(terms_of_pairs, usable, strict=True)
        )
        keys = tuple(dict.fromkeys((*tags, *keys) for keys in usable))
        return AccessPath(query_filter, low, high, keys, exact=exact)
    if tags:
        others = (
            _get_type_filter(query_filter),
            query_filter.payload,
            query_filter.streams,
            query_filter.actor_id,
        )
        only_tags = all(other is None for other in others)
        return AccessPath(query_filter, low, high, (tags,), exact=only_tags)
    return AccessPath(query_filter, low, high)
