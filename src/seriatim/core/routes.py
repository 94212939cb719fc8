"""From a query to the ways along which a store looks for what matches it."""

from __future__ import annotations

import msgspec

from seriatim.core.ids import tag_key
from seriatim.core.indexes import is_pointwise, term_key, wanted_scalars
from seriatim.core.kinds import Rules
from seriatim.core.patterns import Names
from seriatim.core.query import Filter, Query

ALTERNATIVES_MAX = 64
TERMS_MAX = 8

Keys = tuple[bytes, ...]


class Route(msgspec.Struct, frozen=True):
    """One filter over a range of positions, and the index keys that lead to what matches it.

    Whatever matches has all the keys of some alternative; where it is `proven`, whatever has them
    matches. Tags are always among the keys. Without alternatives there is no key to go by.
    """

    one: Filter
    after: int
    until: int
    alternatives: tuple[Keys, ...] = ()
    proven: bool = False

    @property
    def types(self) -> Names | None:
        """The types that the filter names; None when it names none, or all of them."""
        return _types(self.one)


class _Terms(msgspec.Struct, frozen=True):
    """What the indexes of one event type know of one predicate."""

    since: dict[bytes, int]  # by key, the position behind which its index knows all events
    whole: bool  # whether these keys say all that the predicate does

    def behind(self, low: int) -> Keys:
        return tuple(key for key, since in self.since.items() if since <= low)[:TERMS_MAX]


def routes(tenant_id: str, query: Query, rules: Rules, after: int, until: int) -> list[Route]:
    """Return the routes that together meet all that matches, the newest of each filter first.

    An index knows only what was appended after its declaration: a filter's range is cut there.
    """
    found: list[Route] = []
    for one in query.filters or (Filter(),):
        if any(
            side is not None and not side
            for side in (one.types, one.payload, one.tags, one.streams)
        ):
            continue
        tags = tuple(dict.fromkeys(tag_key(tenant_id, tag) for tag in one.tags or ()))
        options = _options(tenant_id, one, rules)
        cuts = {since for terms in options for since in terms.since.values()}
        high = until
        for low in (*sorted((cut for cut in cuts if after < cut < until), reverse=True), after):
            found.append(_route(one, low, high, tags, options))
            high = low
    return found


def _types(one: Filter) -> Names | None:
    names = None if one.types is None else Names.of(one.types)
    return None if names is None or names.everything else names


def _options(tenant_id: str, one: Filter, rules: Rules) -> list[_Terms]:
    """Return the known terms of each event type under each predicate; nothing if one has none.

    Streams are mostly shorter than what a term has, and have an index of their own. A pattern may
    stand for types without an index, also for types that are appended later.
    """
    types = _types(one) or Names()
    predicates = one.payload or ()
    if types.prefixes or one.streams is not None:
        return []
    if len(types.values) * len(predicates) > ALTERNATIVES_MAX:
        return []
    options: list[_Terms] = []
    for event_type in types.values:
        paths = {path.steps: path for path in rules.indexed_paths.get(event_type, ())}
        if not paths:
            return []
        for predicate in predicates:
            wanted = list(wanted_scalars(predicate))
            since = {
                term_key(tenant_id, event_type, paths[steps].text, scalar): paths[steps].since
                for steps, scalar in wanted
                if steps in paths
            }
            if not since:
                return []
            whole = is_pointwise(predicate) and all(steps in paths for steps, _ in wanted)
            options.append(_Terms(since, whole))
    return options


def _route(one: Filter, low: int, high: int, tags: Keys, options: list[_Terms]) -> Route:
    """Go by the keys that hold for all positions behind `low`."""
    usable = [terms.behind(low) for terms in options]
    if usable and all(usable):
        whole = all(
            terms.whole and len(keys) == len(terms.since)
            for terms, keys in zip(options, usable, strict=True)
        )
        keys = tuple(dict.fromkeys((*tags, *keys) for keys in usable))
        return Route(one, low, high, keys, proven=whole)
    if tags:
        bare = _types(one) is None and one.payload is None and one.streams is None
        return Route(one, low, high, (tags,), proven=bare)
    return Route(one, low, high)
