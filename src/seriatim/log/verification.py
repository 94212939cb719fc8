"""Verification: read the whole log, across tenants, and check that it is consistent.

Every record passes through every check, page by page. Checks that need an index or a query over the
whole table are made by the backend (`Store.verify`) at the end. The last event of each stream is
kept in a table of bounded size; the predecessor of an evicted stream is looked up, so memory does
not grow with the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from seriatim.core.consistency import EventProblem
from seriatim.core.event import EventRecord
from seriatim.log.batches import iterate_pages
from seriatim.log.verification_checks import (
    AppendCheck,
    EnvelopeCheck,
    LookupCheck,
    PayloadCheck,
    PositionCheck,
    RecordCheck,
    StreamCheck,
)
from seriatim.store.port import Finding, ReadSpec, Store

VERIFY_PAGE_EVENTS = 2000
REPORTED_PROBLEMS_MAX = 20

_CURE = "find the cause before appending more; restore a backup, or export the intact events"

ProgressCallback = Callable[[int, int], None]


class VerificationReport(msgspec.Struct, frozen=True):
    """The result of a verification: a finding per passed check, or its first problems."""

    findings: list[Finding]
    head: int
    events: int
    appends: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)


def verify(
    store: Store,
    *,
    lookups: int | None = 1000,
    progress: ProgressCallback | None = None,
) -> VerificationReport:
    """Read the whole log and check it. Events appended meanwhile are not checked.

    Args:
        store: The store of the log.
        lookups: How many records are also looked up by their keys; None means all.
        progress: Called with the position reached and the head.

    Example:
        report = verify(log.store)
        assert report.ok, report.findings
    """
    started = time.perf_counter()
    head = store.head()
    step = 1 if lookups is None else max(1, head // max(1, lookups))
    appends = AppendCheck()
    checks: list[RecordCheck] = [
        PositionCheck(head),
        appends,
        PayloadCheck(),
        EnvelopeCheck(),
        StreamCheck(store, store.rules()),
        LookupCheck(store, step),
    ]
    problems = _Problems()
    events = 0
    for record in _iterate_records(store, head, progress):
        events += 1
        for check in checks:
            for problem in check.check(record):
                problems.add(check.name, problem)
    findings = [*_summarize(checks, problems, events, head), *_verify_backend(store)]
    return VerificationReport(findings, head, events, appends.count, time.perf_counter() - started)


def _iterate_records(
    store: Store, head: int, progress: ProgressCallback | None
) -> Iterator[EventRecord]:
    for page in iterate_pages(
        store, ReadSpec(tenant_id=None, limit=VERIFY_PAGE_EVENTS, until=head)
    ):
        yield from page
        if progress is not None:
            progress(page[-1].position, head)


def _summarize(
    checks: Iterable[RecordCheck], problems: _Problems, events: int, head: int
) -> Iterator[Finding]:
    if events != head:
        message = f"the head is {head}, but {events} events were read"
        problems.add(PositionCheck.name, ("error", message))
    for check in checks:
        found = problems.collect(check.name)
        yield from found or [Finding("ok", check.name, check.summarize())]


def _verify_backend(store: Store) -> Iterator[Finding]:
    """Yield the findings of the backend, with its name before each check."""
    for finding in store.verify():
        yield msgspec.structs.replace(finding, check=f"{store.name} {finding.check}")


class _Problems:
    """Count all problems and keep the first of each check."""

    def __init__(self) -> None:
        self._findings: dict[str, list[Finding]] = {}
        self._counts: dict[tuple[str, Literal["warning", "error"]], int] = {}

    def add(self, check: str, problem: EventProblem) -> None:
        level, message = problem
        count = self._counts[check, level] = self._counts.get((check, level), 0) + 1
        if count <= REPORTED_PROBLEMS_MAX:
            cure = _CURE if level == "error" else "none, if the kind was declared later"
            self._findings.setdefault(check, []).append(Finding(level, check, message, cure))

    def collect(self, check: str) -> list[Finding]:
        found = self._findings.get(check, [])
        for (name, level), count in self._counts.items():
            if name == check and count > REPORTED_PROBLEMS_MAX:
                found.append(
                    Finding(level, check, f"and {count - REPORTED_PROBLEMS_MAX} more of this kind")
                )
        return found
