"""The parts of the demo that need the log alone."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import msgspec
from rich.text import Text

import seriatim
from seriatim import (
    AppendResult,
    Command,
    EventSequenceInvalid,
    Filter,
    IdempotencyConflict,
    IdempotencyKeyReuse,
    NewEvent,
    PiiPolicyViolation,
    Query,
    StreamKind,
    verify,
)
from seriatim.examples.demo_report import DemoReport, make_demo_table
from seriatim.profiles.aggregates import AggregateAppendResult


def make_seat_query(seat: str) -> Query:
    """Return the query for all events about one seat."""
    return Query([Filter(types=["seat.reserved", "seat.released"], payload=[{"seat": seat}])])


def make_reservation(seat: str, guest: str) -> dict[str, Any]:
    """Return an event that reserves a seat for a guest."""
    payload = {"seat": seat, "guest": guest, "price": {"amount": 48.5, "currency": "EUR"}}
    return {"event_type": "seat.reserved", "payload": payload, "tags": ["show:hamlet"]}


def show_conditional_append(report: DemoReport) -> None:
    """Reserve a seat, try it again with a stale version, reserve another, and release one."""
    report.start_step(
        "facts: query, then append only if the result is still current",
        "Proves: append_if compares the context version in the transaction that appends.",
    )
    facts = report.log.facts
    seat = make_seat_query("12A")
    table = make_demo_table("command", "context read", "result")
    empty = facts.query(seat).current_context_version
    ann = facts.append_if([make_reservation("12A", "ann")], seat, empty)
    table.add_row("ann reserves 12A", _format_version(empty), _format_result(ann))
    bob = facts.append_if([make_reservation("12A", "bob")], seat, empty)
    table.add_row("bob reserves 12A", _format_version(empty), _format_result(bob))
    other = facts.append_if([make_reservation("12B", "bob")], make_seat_query("12B"), None)
    table.add_row("bob reserves 12B", _format_version(None), _format_result(other))
    released = {"event_type": "seat.released", "payload": {"seat": "12A", "guest": "ann"}}
    current = facts.query(seat).current_context_version
    release = facts.append_if([released], seat, current)
    table.add_row("ann releases 12A", _format_version(current), _format_result(release))
    report.print(table)
    report.check("the stale command got a conflict and stored nothing", bool(ann) and not bob)
    report.check("other seats were not affected", bool(other) and bool(release))
    history = [event.payload["guest"] for event in facts.query(seat).event_records]
    report.check("seat 12A has ann's two events and none of bob's", history == ["ann"] * 2)


def _format_version(version: int | None) -> str:
    return "nothing yet" if version is None else f"version {version}"


def _format_result(result: Any) -> str:
    if result:
        return f"stored at {result.first_sequence_number}"
    expected = _format_version(result.expected_context_version)
    return f"conflict: expected {expected}, found {_format_version(result.actual_context_version)}"


_ACTOR: dict[str, Any] = {"actor_type": "user", "actor_id": "dana", "request_id": "req-1"}
_DEPLOYMENT: dict[str, Any] = {
    "aggregate_type": "deployment",
    "aggregate_id": "web",
    "env_id": "prod",
}


def show_aggregate_commands(report: DemoReport) -> None:
    """Run a command twice, reuse its key, append with a stale number, read as each organisation."""
    report.start_step(
        "aggregates: commands that run once, organisations that are isolated",
        "Proves: expected sequence numbers, stored responses of repeated commands, org scoping.",
    )
    report.log.declare(StreamKind(name="cluster", infrastructure=True))
    first, again = _deploy(report, "v7"), _deploy(report, "v7")
    report.check(
        f"the command sent twice ran once: response {first.response} both times",
        again.replayed and again.response == first.response and again.events == first.events,
    )
    _reuse_key(report)
    _append_with_stale_number(report)
    _print_events(report)
    _check_scopes(report)


def _deploy(report: DemoReport, version: str) -> AggregateAppendResult:
    return report.log.aggregates.append(
        [
            {"event_type": "DeploymentRequested", "payload": {"image": f"web:{version}"}},
            {"event_type": "ReleaseCreated", "payload": {"release": version, "replicas": 3}},
        ],
        org_id="acme",
        expected_seq=None,
        command=Command(
            actor="user:dana",
            endpoint="POST /deployments",
            key="deploy-42",
            request={"app": "web", "image": f"web:{version}"},
            response={"deployment": "web", "status": 202},
        ),
        **_DEPLOYMENT,
        **_ACTOR,
    )


def _reuse_key(report: DemoReport) -> None:
    refusal = None
    try:
        _deploy(report, "v8")
    except IdempotencyKeyReuse as error:
        refusal = error
    report.show_refusal("the same key for another request", refusal)


def _append_with_stale_number(report: DemoReport) -> None:
    healthy = {"event_type": "DeploymentHealthy", "payload": {"replicas": 3}}
    aggregates = report.log.aggregates
    aggregates.append([healthy], org_id="acme", expected_seq=2, **_DEPLOYMENT, **_ACTOR)
    refusal = None
    try:
        aggregates.append([healthy], org_id="acme", expected_seq=2, **_DEPLOYMENT, **_ACTOR)
    except EventSequenceInvalid as error:
        refusal = error
    report.show_refusal("a second writer that expects number 2", refusal)
    report.check("the late writer gets a conflict with the current number", refusal is not None)


def _print_events(report: DemoReport) -> None:
    web = report.log.aggregates.load("deployment", "web", org_id="acme")
    table = make_demo_table("event_id", "seq", "event", "payload", "key", right=("event_id", "seq"))
    for event in web.events:
        kind = Text(event.event_type, style="green")
        key = event.idempotency_key or ""
        table.add_row(str(event.event_id), str(event.aggregate_seq), kind, event.payload_json, key)
    report.print(table)


def _check_scopes(report: DemoReport) -> None:
    aggregates = report.log.aggregates
    node = {"event_type": "NodeJoined", "payload": {"node": "n-1"}}
    aggregates.append([node], aggregate_type="cluster", aggregate_id="eu-1", **_ACTOR)
    counts = {
        "acme": len(aggregates.read(org_id="acme").events),
        "globex": len(aggregates.read(org_id="globex").events),
        "infrastructure": len(aggregates.read(infrastructure=True).events),
    }
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    isolated = counts == {"acme": 3, "globex": 0, "infrastructure": 1}
    report.check(f"each organisation reads only its own events: {shown}", isolated)


RACERS = 5
ROUNDS = 6
_WAIT_S = 60

# Round, racer, the position of its append if it won, the conflicting version if it lost.
RaceResult = tuple[int, int, int | None, int | None]


def run_racer(url: str, racer: int, barrier: Barrier, results: Queue[RaceResult]) -> None:
    """Run one racer: read together with the others, then append together with them."""
    with seriatim.open(url) as log:
        for number in range(ROUNDS):
            seat = f"R{number + 1}"
            barrier.wait(_WAIT_S)
            version = log.facts.query(make_seat_query(seat)).current_context_version
            barrier.wait(_WAIT_S)
            event = make_reservation(seat, f"racer {racer}")
            result: Any = log.facts.append_if([event], make_seat_query(seat), version)
            if result:
                results.put((number, racer, result.first_sequence_number, None))
            else:
                results.put((number, racer, None, result.actual_context_version))


def show_concurrent_appends(report: DemoReport) -> None:
    """Start the racers and print the winner of each round."""
    report.start_step(
        f"a race: {RACERS} processes, {ROUNDS} seats, all read before any appends",
        "Proves: exactly one of several concurrent conditional appends wins.",
    )
    results = sorted(_run_racers(report.url))
    table = make_demo_table("seat", "winner", "stored at", "the others", right=("stored at",))
    fair = True
    for number in range(ROUNDS):
        of_round = [result for result in results if result[0] == number]
        winners = [result for result in of_round if result[2] is not None]
        losers = [result for result in of_round if result[3] is not None]
        fair = fair and len(winners) == 1 and len(losers) == RACERS - 1
        reported = {result[3] for result in losers}
        fair = fair and reported == {result[2] for result in winners}
        table.add_row(
            f"R{number + 1}",
            Text(", ".join(f"racer {result[1]}" for result in winners), style="bold green"),
            ", ".join(str(result[2]) for result in winners),
            f"{len(losers)} conflicts, each naming version {', '.join(map(str, reported))}",
        )
    report.print(table)
    report.check(
        f"{ROUNDS} rounds, {ROUNDS} winners, {ROUNDS * (RACERS - 1)} reported conflicts", fair
    )


def _run_racers(url: str) -> Iterator[RaceResult]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    results: Queue[RaceResult] = context.Queue()
    racers = [
        context.Process(target=run_racer, args=(url, number + 1, barrier, results), daemon=True)
        for number in range(RACERS)
    ]
    for process in racers:
        process.start()
    for _ in range(RACERS * ROUNDS):
        yield results.get(timeout=_WAIT_S)
    for process in racers:
        process.join(_WAIT_S)


CALLS = 24


def _pay(report: DemoReport, amount: str) -> AppendResult:
    payload: dict[str, Any] = {"invoice": "2025-0117", "amount": amount, "currency": "EUR"}
    event = NewEvent("invoice.paid", payload, stream=("invoice", "2025-0117"))
    return report.log.append([event], idempotency_key="payment-2025-0117")


def show_idempotent_retry(report: DemoReport) -> None:
    """Send a payment from many threads, then with a different amount."""
    report.start_step(
        f"an idempotent retry: the same payment sent {CALLS} times concurrently",
        "Proves: one event is stored, every caller gets its receipt, other content is refused.",
    )
    before = report.log.head()
    with ThreadPoolExecutor(CALLS) as pool:
        receipts = list(pool.map(lambda _: _pay(report, "1250.00"), range(CALLS)))
    ids = {receipt.records[0].event_id for receipt in receipts}
    stored = sum(not receipt.replayed for receipt in receipts)
    position = receipts[0].first_position
    report.print(f"{CALLS} receipts for position {position}: {stored} stored, the rest replayed")
    report.check(f"{CALLS} calls, 1 event", len(ids) == stored == report.log.head() - before == 1)
    refusal = None
    try:
        _pay(report, "9999.00")
    except IdempotencyConflict as error:
        refusal = error
    report.show_refusal("the same key with a different amount", refusal)
    report.check("a retry with different content is refused", refusal is not None)


APPENDS = 24
_TYPE = "order.line"

# For each batch: its positions, and the seconds from its append to its arrival.
ReceivedBatches = list[tuple[list[int], float]]


def follow_log(url: str, pipe: Connection, expected: int) -> None:
    """Follow the log and send the received batches through the pipe; runs in its own process."""
    received: ReceivedBatches = []
    with seriatim.open(url) as log:
        tail = log.tail(Query([Filter(types=[_TYPE])]), idle_timeout=_WAIT_S / 4)
        pipe.send("ready")
        for batch in tail:
            latency = time.time() - batch[-1].payload["sent"]
            received.append(([record.position for record in batch], latency))
            if len(received) == expected:
                break
    pipe.send(received)


def show_live_tail(report: DemoReport) -> None:
    """Append while another process tails the log, and compare both sides."""
    report.start_step(
        "a live tail in another process",
        "Proves: every append arrives once, complete and in order, with other writers active.",
    )
    context = multiprocessing.get_context("spawn")
    local, remote = context.Pipe()
    follower = context.Process(target=follow_log, args=(report.url, remote, APPENDS), daemon=True)
    follower.start()
    if not local.poll(_WAIT_S):
        report.check("the other process follows the log", passed=False)
        return
    local.recv()
    sent = _append(report)
    received: ReceivedBatches = local.recv() if local.poll(_WAIT_S) else []
    follower.join(_WAIT_S)
    _compare(report, sent, received)


def _append(report: DemoReport) -> list[list[int]]:
    """Append orders of one to three lines, with unrelated events between them."""
    sent: list[list[int]] = []
    for number in range(APPENDS):
        lines = [
            NewEvent(
                _TYPE,
                {"sku": f"tea-{line}", "quantity": number + 1, "sent": time.time()},
                stream=("order", f"o-{number + 1}"),
            )
            for line in range(1 + number % 3)
        ]
        result = report.log.append(lines)
        sent.append([*range(result.first_position, result.last_position + 1)])
        report.log.append([NewEvent("page.viewed", {"path": "/tea"})])
        time.sleep(0.01)
    return sent


def _compare(report: DemoReport, sent: list[list[int]], received: ReceivedBatches) -> None:
    latencies_ms = sorted(seconds * 1000 for _, seconds in received) or [0.0]
    table = make_demo_table("", "appends", "events", "positions", right=("appends", "events"))
    arrived = [positions for positions, _ in received]
    for side, batches in (("appended", sent), ("received", arrived)):
        count = sum(map(len, batches))
        span = f"{batches[0][0]} … {batches[-1][-1]}" if batches else "none"
        table.add_row(side, str(len(batches)), str(count), span)
    report.print(table)
    median = statistics.median(latencies_ms)
    report.print(
        f"from append to arrival: median {median:.0f} ms, slowest {latencies_ms[-1]:.0f} ms"
    )
    report.check(
        "the same batches in the same order, none missing, none repeated",
        arrived == sent,
    )


# Invented, and assembled here so that secret scanners do not report this file.
_KEY_ID = "AKIA" + "Z7Q2M4XK9T3B6WPL"
_PASSWORD = "hunter" + "2-but-longer"
_ATTEMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a cloud key in a config", {"env": {"vars": ["REGION=eu", f"AWS_KEY={_KEY_ID}"]}}),
    ("a field named password", {"db": {"host": "db-1", "password": _PASSWORD}}),
    ("a URL with a password", {"dsn": f"postgresql://app:{_PASSWORD}@db-1/shop"}),
)


def show_secret_guard(report: DemoReport) -> None:
    """Try to append events with secrets."""
    report.start_step(
        "the guard: secrets are refused",
        "Proves: credentials are refused with rule and path, and no message contains the value.",
    )
    before = report.log.head()
    table = make_demo_table("attempt", "code", "rule", "path")
    secrets_hidden = True
    refused = 0
    for name, payload in _ATTEMPTS:
        try:
            report.log.append([NewEvent("config.changed", payload)])
        except PiiPolicyViolation as error:
            refused += 1
            message = str(error.as_dict())
            secrets_hidden = secrets_hidden and _KEY_ID not in message and _PASSWORD not in message
            table.add_row(name, error.code, str(error.details["rule"]), str(error.details["path"]))
    report.print(table)
    report.check(
        f"{len(_ATTEMPTS)} attempts refused, nothing stored, no value revealed",
        secrets_hidden and refused == len(_ATTEMPTS) and report.log.head() == before,
    )


CALLERS = 32
SECONDS = 1.5


class ThroughputSample(msgspec.Struct, frozen=True):
    """The result of one measurement."""

    callers: int
    events: int
    seconds: float
    latencies_ms: list[float]

    @property
    def rate(self) -> float:
        """Acknowledged appends per second."""
        return self.events / self.seconds


def show_throughput(report: DemoReport) -> None:
    """Measure appends with one and with many callers, which share commits."""
    report.start_step(
        "durable single appends, measured on this machine",
        "Proves: concurrent callers share a durable commit; no receipt precedes the sync to disk.",
    )
    before = report.log.head()
    samples = [measure_appends(report, callers) for callers in (1, CALLERS)]
    table = make_demo_table("callers", "appends", "events/s", "p50 ms", "p99 ms", right=_NUMBERS)
    for sample in samples:
        percentiles = statistics.quantiles(sample.latencies_ms, n=100)
        table.add_row(
            str(sample.callers),
            f"{sample.events:,}",
            f"{sample.rate:,.0f}",
            f"{percentiles[49]:.2f}",
            f"{percentiles[98]:.2f}",
        )
    report.print(table)
    stored = report.log.head() - before
    total = sum(sample.events for sample in samples)
    report.check(f"{total:,} receipts, {stored:,} events in the log", stored == total)


_NUMBERS = ("callers", "appends", "events/s", "p50 ms", "p99 ms")


def measure_appends(report: DemoReport, callers: int) -> ThroughputSample:
    """Append single events from `callers` threads for some seconds."""
    times_ms: list[list[float]] = [[] for _ in range(callers)]
    deadline = time.perf_counter() + SECONDS

    def work(caller: int) -> None:
        stream = ("sensor", f"s-{callers}-{caller}")
        own_times = times_ms[caller]
        while (started := time.perf_counter()) < deadline:
            reading = {"sensor": caller, "celsius": 21.5, "battery": 87, "note": "x" * 200}
            report.log.append([NewEvent("sensor.read", reading, stream=stream)])
            own_times.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    latencies = [latency for own_times in times_ms for latency in own_times]
    return ThroughputSample(callers, len(latencies), elapsed, latencies)


_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def show_verification(report: DemoReport) -> None:
    """Verify the log with all events of the previous steps."""
    report.start_step(
        "verify: the whole log, read again",
        "Proves: no gaps, contiguous streams, correct hashes and indexes after all steps above.",
    )
    result = verify(report.log.store)
    table = make_demo_table("", "check", "finding")
    for finding in result.findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.check, finding.message)
    report.print(table)
    report.check(f"{result.events:,} events in {result.appends:,} appends are sound", result.ok)
