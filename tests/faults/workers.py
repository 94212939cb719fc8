"""The programs that fault tests run in other processes.

Racers are functions for `multiprocessing`. The others are commands, one JSON object of arguments
each, that print one JSON value a line: `python -m tests.faults.workers load '{"url": …}'`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import seriatim
from seriatim import (
    EventType,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    NewEvent,
    PayloadIndex,
    Query,
    RetryPolicy,
    Settings,
    StreamKind,
)
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.store.port import Cursor, RestoredEvent
from tests.faults.previous_program import become_previous_program
from tests.faults.support import VALIDATED

BARRIER_S = 60.0
RESOLVE_S = 60.0


def print_line(value: Any) -> None:
    """Print a line of JSON for the parent process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


# -- racers: all wait at the barrier before and after they read


def race_on_stream(url: str, barrier: Any, rounds: int, racer: int) -> list[int]:
    """Read the last number of a stream and append after it; return the rounds won."""
    stream = ("seat", "12A")
    won = []
    with seriatim.open(url) as log:
        for number in range(rounds):
            barrier.wait(BARRIER_S)
            last = log.last_event(stream)
            barrier.wait(BARRIER_S)
            expected = ExpectedSeq(stream, None if last is None else last.stream_seq)
            event = NewEvent("seat.taken", {"by": racer, "round": number}, stream=stream)
            try:
                log.append([event], expected)
            except seriatim.EventSequenceInvalid:
                continue
            won.append(number)
    return won


def race_on_context(url: str, barrier: Any, rounds: int, racer: int) -> list[int]:
    """Read the version of a context and append conditionally; return the rounds won."""
    context = Query([Filter(types=["room.taken"], payload=[{"room": "blue"}])])
    won = []
    with seriatim.open(url) as log:
        for number in range(rounds):
            barrier.wait(BARRIER_S)
            version = log.query(context).context_version
            barrier.wait(BARRIER_S)
            event = NewEvent("room.taken", {"room": "blue", "by": racer, "round": number})
            try:
                log.append([event], ExpectedContext(context, version))
            except seriatim.ConditionalAppendConflict:
                continue
            won.append(number)
    return won


def repeat_by_key(url: str, barrier: Any, rounds: int, racer: int, threads: int) -> list[Any]:
    """Append the same event under the same key from several threads; return every result."""
    del racer

    def events(number: int) -> tuple[list[NewEvent], str | None]:
        return [NewEvent("order.placed", {"order": number})], f"order-{number}"

    return _repeat(url, barrier, rounds, threads, events)


def repeat_by_id(url: str, barrier: Any, rounds: int, racer: int, threads: int) -> list[Any]:
    """Append the same event under the same id from several threads; return every result."""
    del racer

    def events(number: int) -> tuple[list[NewEvent], str | None]:
        return [NewEvent("order.placed", {"order": number}, event_id=f"o-{number}")], None

    return _repeat(url, barrier, rounds, threads, events)


def repeat_batch(url: str, barrier: Any, rounds: int, racer: int, threads: int) -> list[Any]:
    """Append the same large batch under one key from several threads; return every result."""
    del racer

    def events(number: int) -> tuple[list[NewEvent], str | None]:
        stream = ("cart", f"c-{number}")
        batch = [NewEvent("cart.filled", {"item": n}, stream=stream) for n in range(60)]
        return batch, f"cart-{number}"

    return _repeat(url, barrier, rounds, threads, events)


def _repeat(
    url: str,
    barrier: Any,
    rounds: int,
    threads: int,
    events: Callable[[int], tuple[list[NewEvent], str | None]],
) -> list[Any]:
    here = threading.Barrier(threads)
    receipts: list[Any] = []

    def one(log: seriatim.Log, number: int) -> Any:
        batch, key = events(number)
        here.wait(BARRIER_S)
        receipt = log.append(batch, idempotency_key=key)
        return [
            number,
            receipt.first_position,
            [record.event_id for record in receipt.records],
            [record.recorded_at for record in receipt.records],
        ]

    with seriatim.open(url) as log, ThreadPoolExecutor(threads) as pool:
        for number in range(rounds):
            barrier.wait(BARRIER_S)
            receipts += pool.map(one, [log] * threads, [number] * threads)
    return receipts


def append_without_condition(url: str, barrier: Any, rounds: int, racer: int) -> list[int]:
    """Append to one log-numbered stream; return the assigned numbers."""
    numbers = []
    with seriatim.open(url) as log:
        barrier.wait(BARRIER_S)
        for number in range(rounds):
            event = NewEvent("counted", {"by": racer, "n": number}, stream=("counter", "one"))
            numbers.append(log.append([event]).records[0].stream_seq or 0)
    return numbers


# -- load: appends of every kind; each acknowledgement is synced to disk before the next append


class AcknowledgedEvents:
    """A file of acknowledged events, synced to disk after each write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()

    def write(self, records: Any) -> None:
        """Write the id and the position of each record."""
        lines = "".join(f"{record.event_id} {record.position}\n" for record in records)
        with self._lock:
            os.write(self._file, lines.encode())
            os.fsync(self._file)


class Loader:
    """Appends until stopped; a failed append is repeated with the same ids until it succeeds."""

    def __init__(self, url: str, notes: str, name: str, settings: Settings) -> None:
        self._log = seriatim.open(url, settings=settings)
        self._notes = AcknowledgedEvents(notes)
        self._name = name
        self._done = threading.Event()
        self.failures = {"ambiguous": 0, "clear": 0}

    def run(self, threads: int) -> None:
        """Append from several threads until SIGTERM."""
        # A threading.Event set by the handler would deadlock if the main thread holds its lock.
        signals: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
        print_line("ready")
        workers = [threading.Thread(target=self._one, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        while not signals and not self._done.is_set():
            time.sleep(0.05)
        self._done.set()
        for worker in workers:
            worker.join()
        self._log.close()
        print_line(self.failures)

    def _one(self, thread: int) -> None:
        for number in itertools.count():
            if self._done.is_set():
                return
            try:
                self._append(thread, number)
            except Exception as error:
                print_line(f"{type(error).__name__}: {error}")
                self._done.set()
                raise

    def _append(self, thread: int, number: int) -> None:
        stem = f"{self._name}-{thread}-{number}"
        stream = (self._name, str(thread))
        count = 50 if number % 11 == 10 else 1
        events = [
            NewEvent("loaded", {"n": n}, stream=stream, event_id=f"{stem}-{n}")
            for n in range(count)
        ]
        condition = None
        if number % 5 == 4:
            own = Query([Filter(streams=[stream])])
            condition = ExpectedContext(own, self._resolved(lambda: self._version(own)))
        receipt = self._resolved(lambda: self._log.append(events, condition))
        self._notes.write(receipt.records)

    def _version(self, query: Query) -> int | None:
        return self._log.query(query, limit=1).context_version

    def _resolved(self, act: Callable[[], Any]) -> Any:
        """Repeat an operation until the store responds; the same ids are stored only once."""
        deadline = time.monotonic() + RESOLVE_S
        while True:
            try:
                return act()
            except (seriatim.BackendFailure, seriatim.TimedOut) as failure:
                if time.monotonic() > deadline or not failure.retryable:
                    raise
                kind = "ambiguous" if failure.details.get("ambiguous") else "clear"
                self.failures[kind] += 1
                time.sleep(0.05)


def load(arguments: dict[str, Any]) -> None:
    """Run a loader; with `as_program`, like a program for that version of the schema."""
    if "as_program" in arguments:
        name = f"program_{arguments['name']}"
        become_previous_program(arguments["url"], name, arguments["as_program"])
    settings = Settings(**arguments.get("settings", {}))
    loader = Loader(arguments["url"], arguments["notes"], arguments["name"], settings)
    loader.run(arguments.get("threads", 3))


# -- follow


def follow(arguments: dict[str, Any]) -> None:
    """Tail a log from its beginning and print the positions of each batch."""
    with seriatim.open(arguments["url"]) as log:
        print_line("ready")
        for batch in log.tail(after=0, poll_s=arguments.get("poll_s", 0.05)):
            print_line([record.position for record in batch])


# -- consume: a durable subscription with a retry policy


def consume(arguments: dict[str, Any]) -> None:
    """Run a subscription and print each batch; refuse or hang at the given positions."""
    policy = RetryPolicy(attempts=arguments["attempts"], base_s=arguments.get("base_s", 0.001))

    def handler(batch: list[seriatim.EventRecord]) -> None:
        position = batch[0].position
        print_line(position)
        if position in arguments.get("hang", ()):
            threading.Event().wait()
        if position in arguments.get("refuse", ()):
            raise ValueError("refused")

    with seriatim.open(arguments["url"]) as log:
        print_line("ready")
        on_poison = arguments.get("on_poison", "park")
        log.subscribe("s", retry=policy, on_poison=on_poison, lease_s=1.0, poll_s=0.05).run(handler)


# -- hold: a writer that stops itself while it holds the lock


def hold_append(arguments: dict[str, Any]) -> None:
    """Append and stop (SIGSTOP) at a step; after SIGCONT, report the outcome and repeat."""
    from seriatim.store.postgres import append, writer

    def drive(connection: Any, steps: Any) -> Any:
        vars(writer)["run_steps"] = append.run_steps  # only the first time
        if arguments["at"] == "within a message":
            wait = partial(_stop_in_message, connection)
            return append.run_steps(connection, pause_before_step(steps, "append_events", wait))
        return append.run_steps(connection, pause_before_step(steps, arguments["at"], stop_self))

    vars(writer)["run_steps"] = drive
    stream = ("held", arguments["name"])
    events = [
        NewEvent("held", {"n": n}, stream=stream, event_id=f"{arguments['name']}-{n}")
        for n in range(arguments.get("count", 1))
    ]
    conditions = (ExpectedContext(Query([Filter(streams=[stream])]), None), VALIDATED)
    with seriatim.open(arguments["url"], settings=Settings(**arguments["settings"])) as log:
        print_line("ready")
        try:
            log.append(events, conditions)
            print_line("stored")
        except seriatim.SeriatimError as error:
            print_line(error.as_dict())
            receipt = log.append(events, conditions)
            print_line({"repeated": receipt.replayed})


def stop_self() -> None:
    """Stop this process until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.3)  # another thread may receive the signal; this one must not continue meanwhile


def pause_before_step(steps: Any, at: str, wait: Callable[[], None]) -> Any:
    """Yield the steps of a decision; wait before the SQL with `at`, or at the `end`."""
    rows: Any = None
    try:
        step = next(steps)
        while True:
            if at != "end" and at in step.sql:  # "append" has an "end", too
                wait()
            rows = yield step
            step = steps.send(rows)
    except StopIteration as end:
        if at == "end":
            wait()
        return end.value


def _stop_in_message(connection: Any) -> None:
    """Send the first part of a protocol message to the server, then stop."""
    os.write(connection.pgconn.socket, b"Q" + struct.pack("!i", 1 << 16) + b"insert into")
    stop_self()


# -- fork


def fork(arguments: dict[str, Any]) -> None:
    """Fork repeatedly while threads append; children and parent continue to append."""
    with seriatim.open(arguments["url"]) as log:
        done = threading.Event()
        counts = [0] * 3

        def load(thread: int) -> None:
            while not done.is_set():
                log.append([NewEvent("parent", {"n": counts[thread]}, stream=("p", str(thread)))])
                counts[thread] += 1

        threads = [threading.Thread(target=load, args=(n,)) for n in range(len(counts))]
        for thread in threads:
            thread.start()
        children = []
        for number in range(arguments["forks"]):
            time.sleep(0.1)
            child = os.fork()
            if child == 0:
                _be_a_child(log, number)
            children.append(child)
        exits = [_exit_of(child) for child in children]
        before = sum(counts)
        time.sleep(0.3)
        done.set()
        for thread in threads:
            thread.join(30)
        print_line({"exits": exits, "parent": sum(counts), "continued": sum(counts) > before})


def _be_a_child(log: seriatim.Log, number: int) -> None:
    try:
        with ThreadPoolExecutor(2) as pool:
            stream = ("child", str(number))
            appends = [
                pool.submit(log.append, [NewEvent("child", {"n": n}, stream=stream)])
                for n in range(10)
            ]
            seqs = sorted(append.result().records[0].stream_seq or 0 for append in appends)
        log.close()
        os._exit(0 if seqs == list(range(1, 11)) else 3)
    except BaseException as error:  # noqa: BLE001 - a child must never run the parent's code
        sys.stderr.write(f"{error!r}\n")
        os._exit(4)


def _exit_of(child: int, within_s: float = 15.0) -> int | str:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


# -- pause: any operation, stopped before one of its statements


def pause_at_statement(arguments: dict[str, Any]) -> None:
    """Stop (SIGSTOP) before the first statement that contains `at`; after SIGCONT, retry."""
    import psycopg

    execute = psycopg.Cursor.execute

    def stopping_execute(cursor: Any, query: Any, *more: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        if arguments["at"] in text:
            patched.execute = execute  # only the first time
            stop_self()
        return execute(cursor, query, *more, **options)

    patched: Any = psycopg.Cursor
    patched.execute = stopping_execute
    act = PAUSED[arguments["act"]](arguments["url"], Settings(**arguments["settings"]))
    print_line("ready")
    try:
        act()
        print_line("done")
    except seriatim.SeriatimError as error:
        print_line(error.as_dict())
        act()
        print_line("done")


def _declare(declaration: Any) -> Callable[[str, Settings], Callable[[], Any]]:
    return lambda url, settings: partial(seriatim.open(url, settings=settings).declare, declaration)


def _restore(url: str, settings: Settings) -> Callable[[], Any]:
    """Restore the events of a log in memory into an empty log."""
    log = seriatim.open(url, settings=settings)
    with seriatim.open("memory:") as other:
        draft = other.draft(LOG_PROFILE, [NewEvent("restored", {})])
        [event] = other.appender.prepare_request(draft).events
    return lambda: log.store.restore([RestoredEvent(1, 1, None, 1, event)])


def _move_cursor(url: str, settings: Settings) -> Callable[[], Any]:
    log = seriatim.open(url, settings=settings)
    identity = log.identity()
    cursor = Cursor(
        tenant_id="default",
        purpose="projection",
        name="held",
        position=0,
        log_id=identity.log_id,
        epoch=identity.epoch,
    )
    return partial(log.store.put_cursor, cursor, lease=None, reset=False)


def _migrate(url: str, settings: Settings) -> Callable[[], Any]:
    from seriatim.store.postgres.migrate import migrate

    del settings
    return partial(migrate, url)


PAUSED: dict[str, Callable[[str, Settings], Callable[[], Any]]] = {
    "kind": _declare(StreamKind(name="held")),
    "type": _declare(EventType(event_type="held", event_version=1)),
    "index": _declare(PayloadIndex("held", "a")),
    "restore": _restore,
    "cursor": _move_cursor,
    "migrate": _migrate,
}


COMMANDS = {
    "load": load,
    "follow": follow,
    "consume": consume,
    "hold": hold_append,
    "fork": fork,
    "pause": pause_at_statement,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](json.loads(sys.argv[2]))
