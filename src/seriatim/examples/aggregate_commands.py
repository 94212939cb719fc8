"""Demo step: aggregates of two organisations, and a command that is sent twice."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from seriatim import Command, EventSequenceInvalid, IdempotencyKeyReuse, StreamKind
from seriatim.examples.demo_report import DemoReport, make_demo_table
from seriatim.profiles.aggregates import AggregateAppendResult

_ACTOR: dict[str, Any] = {"actor_type": "user", "actor_id": "dana", "request_id": "req-1"}
_DEPLOYMENT: dict[str, Any] = {
    "aggregate_type": "deployment",
    "aggregate_id": "web",
    "env_id": "prod",
}


def run(report: DemoReport) -> None:
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
    seen = ", ".join(f"{name} {count}" for name, count in counts.items())
    held = counts == {"acme": 3, "globex": 0, "infrastructure": 1}
    report.check(f"each organisation reads only its own events: {seen}", held)
