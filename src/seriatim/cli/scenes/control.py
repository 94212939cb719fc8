"""A deployment control plane: aggregates of two organisations, and a command sent twice."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.core.errors import EventSequenceInvalid, IdempotencyKeyReuse
from seriatim.core.kinds import StreamKind
from seriatim.core.request import Command
from seriatim.profiles.aggregates import AggregateAppendResult

_WHO: dict[str, Any] = {"actor_type": "user", "actor_id": "dana", "request_id": "req-1"}
_WEB: dict[str, Any] = {"aggregate_type": "deployment", "aggregate_id": "web", "env_id": "prod"}


def play(stage: Stage) -> None:
    """Deploy for one organisation, repeat the command, look from another organisation."""
    stage.scene(
        "aggregates: commands that run once, organisations that never meet",
        "Proves: expected numbers, stored responses for a repeated command, and org scoping.",
    )
    stage.log.declare(StreamKind(name="cluster", infrastructure=True))
    first, again = _deploy(stage, "v7"), _deploy(stage, "v7")
    stage.check(
        f"the command sent twice ran once: response {first.response} both times",
        again.replayed and again.response == first.response and again.events == first.events,
    )
    _reuse_key(stage)
    _go_on(stage)
    _show(stage)
    _scopes(stage)


def _deploy(stage: Stage, version: str) -> AggregateAppendResult:
    return stage.log.aggregates.append(
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
        **_WEB,
        **_WHO,
    )


def _reuse_key(stage: Stage) -> None:
    refusal = None
    try:
        _deploy(stage, "v8")
    except IdempotencyKeyReuse as error:
        refusal = error
    stage.refused("the same key for another request", refusal)


def _go_on(stage: Stage) -> None:
    healthy = {"event_type": "DeploymentHealthy", "payload": {"replicas": 3}}
    aggregates = stage.log.aggregates
    aggregates.append([healthy], org_id="acme", expected_seq=2, **_WEB, **_WHO)
    refusal = None
    try:
        aggregates.append([healthy], org_id="acme", expected_seq=2, **_WEB, **_WHO)
    except EventSequenceInvalid as error:
        refusal = error
    stage.refused("a writer that read number 2", refusal)
    stage.check("the late writer is told where the aggregate is now", refusal is not None)


def _show(stage: Stage) -> None:
    web = stage.log.aggregates.load("deployment", "web", org_id="acme")
    shown = sheet("event_id", "seq", "event", "payload", "key", right=("event_id", "seq"))
    for event in web.events:
        kind = Text(event.event_type, style="green")
        key = event.idempotency_key or ""
        shown.add_row(str(event.event_id), str(event.aggregate_seq), kind, event.payload_json, key)
    stage.show(shown)


def _scopes(stage: Stage) -> None:
    aggregates = stage.log.aggregates
    node = {"event_type": "NodeJoined", "payload": {"node": "n-1"}}
    aggregates.append([node], aggregate_type="cluster", aggregate_id="eu-1", **_WHO)
    counts = {
        "acme": len(aggregates.read(org_id="acme").events),
        "globex": len(aggregates.read(org_id="globex").events),
        "infrastructure": len(aggregates.read(infrastructure=True).events),
    }
    seen = ", ".join(f"{name} {count}" for name, count in counts.items())
    held = counts == {"acme": 3, "globex": 0, "infrastructure": 1}
    stage.check(f"each sees its own events only: {seen}", held)
