"""The scope of a call: the log of its organisation, and the fields that its events share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seriatim.core.event import DEFAULT_TENANT, INFRASTRUCTURE_TENANT, NewEvent
from seriatim.core.request import Command
from seriatim.core.tenants import is_infrastructure
from seriatim.log.arguments import invalid_argument
from seriatim.log.base import BaseLog
from seriatim.profiles.aggregate_values import (
    READ_FIELD_NAMES,
    RequestFields,
    check_request_fields,
    event_error,
)
from seriatim.profiles.snapshots import Snapshots


class AggregateScope:
    """The log of a caller, the fields of the request that its calls share, and its snapshots."""

    def __init__(
        self, log: BaseLog, fields: RequestFields, snapshots_url: str | None = None
    ) -> None:
        self._log = log
        self._fields = fields
        self._snapshots_url = snapshots_url

    def with_fields(self, fields: RequestFields) -> AggregateScope:
        """Return a scope with further fields."""
        check_request_fields(fields)
        return AggregateScope(self._log, {**self._fields, **fields}, self._snapshots_url)

    def with_snapshots(self, url: str) -> AggregateScope:
        """Return a scope with another place for snapshots."""
        return AggregateScope(self._log, self._fields, url)

    def find_snapshots(self, log: BaseLog) -> Snapshots:
        """Return the snapshots of a tenant's log."""
        return Snapshots(log, self._snapshots_url)

    def find_log(self, aggregate_type: str, org_id: str | None) -> BaseLog:
        """Return the log of the organisation of an aggregate, or that of infrastructure."""
        infrastructure = self._is_infrastructure(aggregate_type)
        org_id = self.find_org(org_id, infrastructure)
        return self.find_log_of(org_id, infrastructure and org_id is None)

    def find_field(self, name: str, fields: RequestFields) -> Any:
        """Return a field of a request, by default that of `for_request`, or None."""
        given: Mapping[str, Any] = {**self._fields, **check_request_fields(fields)}
        return given.get(name)

    def find_org(self, org_id: str | None, infrastructure: bool) -> str | None:
        """Return the organisation, by default that of `for_request`."""
        return self._fields.get("org_id") if org_id is None and not infrastructure else org_id

    def join_fields(self, command: Command | None, **fields: str | None) -> Mapping[str, str]:
        """Return the fields that are set, with the key of the command as the default key."""
        common: dict[str, Any] = dict(check_request_fields(self._fields))
        common.pop("org_id", None)
        common |= {name: value for name, value in fields.items() if value is not None}
        if isinstance(command, Command):
            common.setdefault("idempotency_key", command.key)
        return common

    def find_log_for_append(self, org_id: str | None, events: Any) -> BaseLog:
        """Return the log of the organisation of the events, which must be named."""
        new_events = events if isinstance(events, list) else []
        if org_id is None and self._list_owned(new_events):
            org_id = self._fields.get("org_id")
        owner = org_id or next((event.tenant_id for event in new_events if event.tenant_id), None)
        owned = self._list_owned(new_events)
        if owner is not None or not new_events:
            if len(owned) < len(new_events):
                raise invalid_argument(
                    "org_id", "must be left out: infrastructure belongs to no organisation"
                )
            return self.find_log_of(owner, infrastructure=False)
        if owned and self._log.tenant_id == DEFAULT_TENANT:
            self._log.appender.reload_rules()  # another process may have declared the kind
            owned = self._list_owned(new_events)
            if owned:
                raise event_error("org_id", "is required", owned[0])
        return self._log if owned else self.find_log_of(None, infrastructure=True)

    def _list_owned(self, events: list[NewEvent]) -> list[int]:
        """Return the indexes of the events whose aggregate belongs to an organisation."""
        kinds = [event.stream[0] for event in events if event.stream is not None]
        return [index for index, kind in enumerate(kinds) if not self._is_infrastructure(kind)]

    def find_log_of(self, org_id: str | None, infrastructure: bool) -> BaseLog:
        """Return the log of an organisation, of infrastructure, or of the caller."""
        if org_id is not None and is_infrastructure(org_id):
            raise invalid_argument("org_id", "is reserved for infrastructure")
        if infrastructure:
            if org_id is not None:
                raise invalid_argument(
                    "org_id", "must be left out: infrastructure belongs to no organisation"
                )
            return self._log.for_tenant(INFRASTRUCTURE_TENANT)
        with READ_FIELD_NAMES.translate_errors():
            return self._log if org_id is None else self._log.for_tenant(org_id)

    def _is_infrastructure(self, aggregate_type: str) -> bool:
        return self._log.appender.rules.kind_of(aggregate_type).infrastructure
