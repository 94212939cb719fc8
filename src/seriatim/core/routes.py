"""From a query to the ways along which a store looks for what matches it."""

from __future__ import annotations

import msgspec

from seriatim.core.ids import tag_key
from seriatim.core.indexes import term_key, wanted_scalars
from seriatim.core.kinds import Rules
from seriatim.core.query import Filter, Query

ALTERNATIVES_MAX = 64
TERMS_MAX = 8

Keys = tuple[bytes, ...]
_Terms = list[tuple[int, bytes]]  # each with the position behind which its index knows all


class Route(msgspec.Struct, frozen=True):
    """One filter over a range of positions, and the index keys that lead to what matches it.

    Whatever matches has all the keys of some alternative, and `tags` need no further look. Without
    alternatives there is no key to go by.
    """

    one: Filter
    after: int
    until: int
    alternatives: tuple[Keys, ...] = ()


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
        cuts = {since for option in options for since, _ in option if after < since < until}
        high = until
        for low in (*sorted(cuts, reverse=True), after):
            found.append(Route(one, low, high, _alternatives(tags, options, low)))
            high = low
    return found


def _options(tenant_id: str, one: Filter, rules: Rules) -> list[_Terms]:
    """Return the known terms of each event type under each predicate; nothing if one has none."""
    types = dict.fromkeys(one.types or ())
    predicates = one.payload or ()
    if len(types) * len(predicates) > ALTERNATIVES_MAX:
        return []
    options: list[_Terms] = []
    for event_type in types:
        paths = {path.steps: path for path in rules.indexed_paths.get(event_type, ())}
        if not paths:
            return []
        for predicate in predicates:
            terms = {
                term_key(tenant_id, event_type, paths[steps].text, scalar): paths[steps].since
                for steps, scalar in wanted_scalars(predicate)
                if steps in paths
            }
            if not terms:
                return []
            options.append([(since, key) for key, since in terms.items()])
    return options


def _alternatives(tags: Keys, options: list[_Terms], low: int) -> tuple[Keys, ...]:
    """Return the keys that hold for all positions behind `low`."""
    usable = [[key for since, key in option if since <= low][:TERMS_MAX] for option in options]
    if usable and all(usable):
        return tuple(dict.fromkeys((*tags, *terms) for terms in usable))
    return (tags,) if tags else ()
