"""Re-reading a whole log, across tenants and in flat memory, to prove that it is what it says.

A page at a time goes through every check; what only an index or a query over the whole table can
show is asked of the backend (`Store.verify`) at the end. Streams are followed in a bounded table:
the predecessor of a stream that fell out of it is looked up, so memory stays flat at any size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from seriatim.core.event import EventRecord
from seriatim.log.pages import pages
from seriatim.log.verify_checks import (
    Appends,
    Check,
    Envelopes,
    Lookups,
    Payloads,
    Positions,
    Problem,
    Streams,
)
from seriatim.store.port import Finding, ReadSpec, Store

PAGE = 2000
SHOWN_MAX = 20

_CURE = "find out why before appending more; restore a backup, or export what is sound"

Progress = Callable[[int, int], None]


class Report(msgspec.Struct, frozen=True):
    """What a verification found: a line for every check, and the first few problems of each."""

    findings: list[Finding]
    head: int
    events: int
    appends: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)


def verify(
    store: Store,
    *,
    lookups: int | None = 1000,
    progress: Progress | None = None,
) -> Report:
    """Re-read the log and check it; `lookups` is how many records are also fetched by their keys.

    None looks every record up. Events appended meanwhile are left to the next verification.
    """
    started = time.perf_counter()
    head = store.head()
    step = 1 if lookups is None else max(1, head // max(1, lookups))
    appends = Appends()
    checks: list[Check] = [
        Positions(head),
        appends,
        Payloads(),
        Envelopes(),
        Streams(store, store.rules()),
        Lookups(store, step),
    ]
    problems = _Problems()
    events = 0
    for record in _all_records(store, head, progress):
        events += 1
        for check in checks:
            for problem in check.look(record):
                problems.add(check.name, problem)
    findings = [*_concluded(checks, problems, events, head), *_of_backend(store)]
    return Report(findings, head, events, appends.count, time.perf_counter() - started)


def _all_records(store: Store, head: int, progress: Progress | None) -> Iterator[EventRecord]:
    for page in pages(store, ReadSpec(tenant_id=None, limit=PAGE, until=head)):
        yield from page
        if progress is not None:
            progress(page[-1].position, head)


def _concluded(
    checks: Iterable[Check], problems: _Problems, events: int, head: int
) -> Iterator[Finding]:
    if events != head:
        message = f"the log's head is {head}, but {events} events were read"
        problems.add(Positions.name, ("error", message))
    for check in checks:
        found = problems.of(check.name)
        yield from found or [Finding("ok", check.name, check.holds())]


def _of_backend(store: Store) -> Iterator[Finding]:
    """Yield what the backend says of itself, told apart from what was read here."""
    for finding in store.verify():
        yield msgspec.structs.replace(finding, check=f"{store.name} {finding.check}")


class _Problems:
    """Counts every problem and keeps the first few of each check."""

    def __init__(self) -> None:
        self._shown: dict[str, list[Finding]] = {}
        self._counts: dict[tuple[str, Literal["warning", "error"]], int] = {}

    def add(self, check: str, problem: Problem) -> None:
        level, message = problem
        count = self._counts[check, level] = self._counts.get((check, level), 0) + 1
        if count <= SHOWN_MAX:
            cure = _CURE if level == "error" else "nothing, if its kind was declared later"
            self._shown.setdefault(check, []).append(Finding(level, check, message, cure))

    def of(self, check: str) -> list[Finding]:
        found = self._shown.get(check, [])
        for (name, level), count in self._counts.items():
            if name == check and count > SHOWN_MAX:
                found.append(Finding(level, check, f"and {count - SHOWN_MAX} more of this kind"))
        return found
