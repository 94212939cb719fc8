"""K1: the guard refuses secrets before anything is stored, and never reveals them."""

from __future__ import annotations

from typing import Any

from seriatim.core.guard import BUILT_IN_GUARDS
from seriatim.factory import Log
from seriatim.testing.factories import SharedStore, assert_refused, event, trace_event

AWS = "AKIA" + "Q" * 16
GITHUB = "ghp_" + "a1" * 18


class GuardContract:
    """K1: secrets are never stored, with either built-in policy."""

    def test_payload_keys_and_envelope_are_scanned(self, log: Log) -> None:
        """K1: payload, object keys and envelope are scanned; errors contain no value."""
        places: list[tuple[dict[str, Any], str]] = [
            ({"payload": {"a": [{"b": AWS}]}}, "$.a[0].b"),
            ({"payload": {"note": f"the key is {GITHUB}."}}, "$.note"),
            ({"payload": {AWS: 1}}, "$.*"),
            ({"tags": ("fine", AWS)}, "tags[1]"),
            ({"metadata": {"label": AWS}}, "metadata.label"),
            ({"payload": {"password": 123456}}, "$.password"),
            ({"payload": {"password": ["x"]}}, "$.password[0]"),
            ({"metadata": {AWS: "a"}}, "metadata.*"),
            ({"event_type": AWS}, "event_type"),
            ({"event_id": AWS}, "event_id"),
            ({"stream": (AWS, "a")}, "stream_type"),
            ({"stream": ("order", AWS)}, "stream_id"),
            ({"producer_id": AWS}, "producer_id"),
            ({"request_id": AWS}, "request_id"),
            ({"app_id": AWS}, "app_id"),
            ({"env_id": AWS}, "env_id"),
            ({"actor_id": AWS}, "actor_id"),
            ({"source_system": AWS}, "source_system"),
            ({"correlation_id": AWS}, "correlation_id"),
            ({"causation_id": AWS}, "causation_id"),
            ({"idempotency_key": AWS}, "idempotency_key"),
        ]
        for fields, path in places:
            batch = [event(idempotency_key="a"), event(**({"idempotency_key": "b"} | fields))]
            with assert_refused(
                log, "pii_policy_violation", index=1, path=path, guard="default"
            ) as caught:
                log.append(batch)
            shown = str(caught[0].as_dict())
            assert AWS not in shown
            assert GITHUB not in shown
            assert caught[0].details["rule"]

    def test_a_key_for_the_whole_append_is_scanned(self, log: Log) -> None:
        """K1: a secret in the idempotency key of an append is refused, too."""
        with assert_refused(log, "pii_policy_violation", index=0, path="idempotency_key"):
            log.append([event()], idempotency_key=AWS)

    def test_ordinary_text_passes(self, log: Log) -> None:
        """K1: the default policy accepts ordinary text, including e-mail addresses."""
        for text in ("task-42", "Asia/Tokyo", "a@example.com", "Bearer of news", "ASIA", "sk-1"):
            log.append([event(payload={"text": text}, tags=(text,))])

    def test_traces_have_their_own_policy(self, log: Log) -> None:
        """K1, T2: traces refuse the frozen substrings in values, in any letter case."""

        def started(**fields: Any) -> Any:
            return trace_event("TraceStarted", "t", 0, **fields)

        payload = dict(started().payload)
        for text in ("task-42", "Asia/Tokyo", "xoxb-", "a bearer x", "TOKEN=1"):
            with assert_refused(log, "pii_policy_violation", path="$.note", guard="traces-v1"):
                log.append([started(payload=payload | {"note": text})])
        with assert_refused(log, "pii_policy_violation", path="tags[0]", guard="traces-v1"):
            log.append([started(tags=("password=x",))])
        with assert_refused(log, "pii_policy_violation", path="producer_id", guard="traces-v1"):
            log.append([started(producer_id="task-42")])
        log.append([started(payload=payload | {"token=": "a key is not scanned"})])

    def test_custom_guard_policy(self, log: Log) -> None:
        """K1: a log can be opened with another policy, built-in or custom."""

        class NoDucks:
            """A policy that refuses the word duck."""

            name = "no-ducks"

            def scan(self, seen: Any) -> Any:
                """Check the text of the payload."""
                from seriatim.core.guard import Violation  # noqa: PLC0415 - only here

                return Violation("duck", "$") if "duck" in seen.payload_text else None

        with type(log)(SharedStore(log.store), guard=NoDucks()) as strict:
            with assert_refused(log, "pii_policy_violation", rule="duck", guard="no-ducks"):
                strict.append([event(payload={"a": "duck"})])
            if log.store.name == "http":  # the service has a guard of its own besides
                with assert_refused(log, "pii_policy_violation", guard="default"):
                    strict.append([event(payload={"a": AWS})])
            else:
                strict.append([event(payload={"a": AWS})])
        with type(log)(SharedStore(log.store), guard=BUILT_IN_GUARDS["personal"]) as personal:
            given = [event(payload={"a": "jane@example.com"})]
            with assert_refused(log, "pii_policy_violation", path="$.a"):
                personal.append(given)
