"""Causes and effects of an event as a tree, by causation ids."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from seriatim.console.page import ConsolePage
from seriatim.core.errors import InvalidArgument, NotFound

CAUSES_MAX = 10
EFFECTS_MAX = 50  # events in the tree besides the causes
EFFECT_DEPTH = 5
_EFFECTS_OF_ONE = 20
_LOOKUPS_MAX = 30  # reads of effects for one page


class CauseNode(msgspec.Struct):
    """An event in the tree, with the events that it caused.

    Attributes:
        event_id: The causation id, which may name no event of the log.
        event: The event, None if the log has none with this id that the caller may read.
        here: Whether it is the event of the page.
        effects: The events that it caused.
        cut: Whether it may have more effects than the tree displays.
    """

    event_id: str
    event: dict[str, Any] | None
    here: bool = False
    effects: list[CauseNode] = msgspec.field(default_factory=list)
    cut: bool = False


async def read_cause_tree(page: ConsolePage, event: dict[str, Any]) -> CauseNode:
    """Return the tree from the first known cause of an event to its effects, bounded."""
    node = CauseNode(event["event_id"], event, here=True)
    seen = {
        node.event_id
    }  # callers choose causation ids, so events can cause each other in a circle
    await _add_effects(page, node, seen)
    top = node
    for _ in range(CAUSES_MAX):
        cause_id = None if top.event is None else top.event["causation_id"]
        if cause_id is None or cause_id in seen:
            break
        seen.add(cause_id)
        top = CauseNode(cause_id, await _find_event(page, cause_id), effects=[top])
    return top


async def _find_event(page: ConsolePage, event_id: str) -> dict[str, Any] | None:
    """Return an event by its id, None if there is none: a causation id may be any text."""
    try:
        event: dict[str, Any] = (await page.get("/v1/event", event_id=event_id))["record"]
    except (NotFound, InvalidArgument):
        return None
    return event


async def _add_effects(page: ConsolePage, top: CauseNode, seen: set[str]) -> None:
    """Add the effects of an event level by level, until a bound is reached."""
    queue = deque([(top, 1)])
    lookups = 0
    while queue:
        node, depth = queue.popleft()
        if depth > EFFECT_DEPTH or lookups >= _LOOKUPS_MAX or len(seen) > EFFECTS_MAX:
            node.cut = True
            continue
        lookups += 1
        response = await page.get("/v1/events", causation_id=node.event_id, limit=_EFFECTS_OF_ONE)
        for event in response["records"]:
            if event["event_id"] in seen:
                continue
            seen.add(event["event_id"])
            effect = CauseNode(event["event_id"], event)
            node.effects.append(effect)
            queue.append((effect, depth + 1))
        node.cut = len(response["records"]) == _EFFECTS_OF_ONE
