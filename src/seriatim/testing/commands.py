"""C5: duplicates of a command run once and receive the stored response."""

from __future__ import annotations

from typing import Any

from seriatim.core.event import AppendResult
from seriatim.core.request import Command, ExpectedSeq
from seriatim.factory import Log
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    assert_unchanged,
    event,
    events,
    run_concurrently,
)

_REQUEST = {"sku": "a", "count": 2}
_RESPONSE = {"order": "o-1", "total": 1.5}


def command(
    *,
    actor: str = "u-1",
    endpoint: str = "POST /orders",
    key: str = "k-1",
    request: Any = _REQUEST,
    response: Any = _RESPONSE,
) -> Command:
    """Return a command."""
    return Command(actor=actor, endpoint=endpoint, key=key, request=request, response=response)


_command: Any = command  # for values that its types forbid


class CommandContract:
    """C5: a command is recorded in the transaction of its append."""

    def test_new_command_appends(self, log: Log) -> None:
        """C5: a new command appends, and its receipt carries its response."""
        result = log.append(events(2), command=command())

        assert (result.replayed, result.count) == (False, 2)
        assert result.response == {"order": "o-1", "total": 1.5}

    def test_duplicate_command_returns_the_stored_response(self, log: Log) -> None:
        """C5: the same request under the same key gives the first response and records."""
        first = log.append(events(2), command=command())

        with assert_unchanged(log):
            retry = log.append(events(5, "other"), command=command(response={"order": "o-2"}))

        assert retry.replayed
        assert retry.response == first.response
        assert retry.records == first.records

    def test_requests_are_compared_by_value(self, log: Log) -> None:
        """C5: requests are compared by canonical JSON, so the order of keys does not matter."""
        log.append(events(1), command=command(request={"a": 1, "b": [2]}))

        assert log.append(events(1), command=command(request={"b": [2], "a": 1})).replayed

    def test_another_request_under_a_known_key_is_refused(self, log: Log) -> None:
        """C5: the same key with a different request is `idempotency_key_reuse`."""
        log.append(events(1), command=command())

        with assert_refused(log, "idempotency_key_reuse", key="k-1"):
            log.append(events(1), command=command(request={"sku": "b"}))

    def test_the_key_belongs_to_tenant_actor_and_endpoint(self, log: Log) -> None:
        """C5: a different tenant, actor, endpoint or key is a different command."""
        commands = [
            command(),
            command(actor="u-2"),
            command(endpoint="POST /returns"),
            command(key="k-2"),
            command(actor="u-1P", endpoint="OST /orders"),
        ]
        for variant in commands:
            assert not log.append(events(1), command=variant).replayed
        assert not log.for_tenant("other").append(events(1), command=command()).replayed
        assert log.head() == len(commands) + 1

    def test_duplicate_command_bypasses_conditions(self, log: Log) -> None:
        """C5: a duplicate gets its response before its conditions or numbers are checked."""
        condition = ExpectedSeq(("s", "1"), None)
        batch = [event(stream=("s", "1"), stream_seq=1)]
        log.append(batch, condition, command=command())

        assert log.append(batch, condition, command=command()).replayed

    def test_refused_append_stores_no_command(self, log: Log) -> None:
        """C5: a command whose append failed may run again."""
        with assert_refused(log, "event_sequence_invalid"):
            log.append(events(1), ExpectedSeq(("s", "1"), 1), command=command())

        assert not log.append(events(1), command=command(request="other")).replayed

    def test_concurrent_duplicates_run_once(self, log: Log) -> None:
        """C5: concurrent duplicates run once and receive equal responses."""

        def operation(number: int) -> AppendResult:
            return log.append(events(2), command=command(response={"by": number}))

        outcomes = run_concurrently(operation, 16)

        assert log.head() == 2
        results = [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
        assert len(results) == 16
        assert sum(not outcome.replayed for outcome in results) == 1
        assert len({outcome.response["by"] for outcome in results}) == 1

    def test_request_and_response_are_optional(self, log: Log) -> None:
        """C5: request and response are optional, and a response is any JSON value."""
        for key, response in (("a", None), ("b", [1, "x"]), ("c", "text"), ("d", False)):
            repeated = command(key=key, request=None, response=response)
            log.append(events(1), command=repeated)
            retry = log.append(events(1), command=repeated)
            assert (retry.replayed, retry.response) == (True, response)

    def test_purge_keeps_commands_for_a_day(self, log: Log) -> None:
        """C5: a purge deletes nothing younger than a day and refuses a shorter period."""
        log.append(events(1), command=command())

        assert log.purge_commands() == 0
        assert log.append(events(1), command=command()).replayed
        assert_all_refused(
            log,
            lambda hours: log.purge_commands(older_than_hours=hours),
            {
                repr(hours): (hours, "invalid_argument", "older_than_hours")
                for hours in (23.9, 0, -1, "24", None, float("nan"), float("inf"), True)
            },
        )

    def test_purge_deletes_old_commands(self, log: Log) -> None:
        """C5: a purge deletes older command records and no events."""
        log.append(events(1), command=command())

        assert log.store.purge_commands(-60) == 1
        assert log.store.purge_commands(-60) == 0
        assert not log.append(events(1), command=command(request="other")).replayed
        assert log.head() == 2

    def test_invalid_command_is_refused(self, log: Log) -> None:
        """C5: a command with an invalid name, key, request or response is refused."""
        bad = "invalid_argument"
        assert_all_refused(
            log,
            lambda candidate: log.append(events(1), command=candidate),
            {
                "no command": ("k", bad, "command"),
                "empty actor": (command(actor=""), bad, "command.actor"),
                "control character": (command(endpoint="a\nb"), bad, "command.endpoint"),
                "number": (_command(key=7), bad, "command.key"),
                "empty key": (command(key=""), bad, "command.key"),
                "long key": (command(key="x" * 201), bad, "command.key"),
                "NaN": (command(request=float("nan")), bad, "command"),
                "bytes": (command(response=b"x"), bad, "command"),
                "surrogate": (command(response="\ud800"), bad, "command"),
                "too large": (command(response="x" * 2**20), "limit_exceeded", "payload_bytes"),
                "too many bytes": (
                    command(response="é" * 2**19),
                    "limit_exceeded",
                    "payload_bytes",
                ),
            },
        )
