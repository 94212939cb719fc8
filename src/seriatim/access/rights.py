"""Rights: which tenants, event types and operations a caller's token allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from seriatim.core.errors import Forbidden, InvalidArgument, LimitExceeded
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.ids import id_problem
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.core.patterns import WILDCARD, NameFilter, is_pattern
from seriatim.core.query import Filter, Query
from seriatim.core.tenants import ALL_TENANTS, is_infrastructure, tenant_problem

Right = Literal["append", "read", "operate", "act_as"]
RIGHTS: tuple[Right, ...] = get_args(Right)
ANONYMOUS = "anonymous"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller: its name, tenant, rights and event types.

    `anonymous` calls without a token; it is never recorded as the actor of events.
    """

    subject: str
    tenant_id: str = ALL_TENANTS
    rights: frozenset[Right] = frozenset(RIGHTS)
    types: tuple[str, ...] | None = None
    service: bool = True
    token_id: str = ""

    def resolve_tenant(self, requested: str | None) -> str:
        """Return the tenant of a request.

        Args:
            requested: The tenant that the request names, or None.

        Raises:
            Forbidden: The token does not allow that tenant.
            InvalidArgument: The name is malformed.
        """
        tenant_id = self._select_tenant(requested)
        operates = self.service and "operate" in self.rights
        if is_infrastructure(tenant_id) and not operates:
            raise Forbidden("this token may not access the infrastructure's tenant")
        return tenant_id

    def _select_tenant(self, requested: str | None) -> str:
        if self.tenant_id != ALL_TENANTS:
            if requested not in (None, self.tenant_id):
                raise Forbidden("this token is for another tenant")
            return self.tenant_id
        tenant_id = DEFAULT_TENANT if requested is None else requested
        check_one_tenant(tenant_id)
        return tenant_id

    def require(self, right: Right, *, service: bool = False) -> None:
        """Raise `Forbidden` if the token lacks a right, or is no service's although it must be."""
        if right not in self.rights:
            raise Forbidden(f"this token lacks the right {right}", details={"right": right})
        if service and not self.service:
            raise Forbidden("this needs the token of a service", details={"right": "service"})

    def require_types(self, types: Iterable[object]) -> None:
        """Raise `Forbidden` for event types outside the token's scope."""
        if self.types is None:
            return
        allowed = NameFilter.parse(self.types)
        for event_type in types:
            if not isinstance(event_type, str) or not allowed.allows(event_type):
                raise Forbidden("this token does not allow events of this type")

    def require_all_types(self) -> None:
        """Raise `Forbidden` if the token is limited to some event types.

        For operations that cannot be restricted to event types.
        """
        if self.types is not None:
            raise Forbidden("this operation covers all event types, and this token only some")

    def can_read(self, event_type: str) -> bool:
        """Return whether the caller may read events of a type."""
        return self.types is None or NameFilter.parse(self.types).allows(event_type)

    def restrict_types(self, types: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Restrict the event types of a read to the token's scope; None means all types."""
        if self.types is None:
            return types
        if types is None:
            return self.types
        return NameFilter.parse(types).intersect(NameFilter.parse(self.types)).to_patterns()

    def restrict_query(self, query: Query) -> Query:
        """Restrict every filter of a query to the token's scope."""
        if self.types is None:
            return query
        # A query without filters matches everything, so the scope needs a filter of its own.
        filters = [self._restrict_filter(each) for each in query.filters or [Filter()]]
        return Query(filters, query.min_position)

    def _restrict_filter(self, query_filter: Filter) -> Filter:
        types = None if query_filter.types is None else tuple(query_filter.types)
        return msgspec.structs.replace(query_filter, types=self.restrict_types(types))


def check_one_tenant(tenant_id: str) -> None:
    """Raise `InvalidArgument` unless this is the name of one tenant."""
    if problem := tenant_problem(tenant_id):
        raise InvalidArgument(f"the tenant {problem}", details={"argument": "tenant"})


def check_rights(names: Iterable[str], *, service: bool) -> frozenset[Right]:
    """Return the rights of a token.

    Raises:
        InvalidArgument: A right is unknown, there is none, or a tenant's token may do more than
            read.
    """
    rights: set[Right] = set()
    for name in names:
        right = next((right for right in RIGHTS if right == name), None)
        if right is None:
            msg = f"unknown right {name!r:.40}: choose from {', '.join(RIGHTS)}"
            raise InvalidArgument(msg, details={"argument": "rights"})
        rights.add(right)
    if not rights:
        msg = f"a token needs at least one right: choose from {', '.join(RIGHTS)}"
        raise InvalidArgument(msg, details={"argument": "rights"})
    if not service and rights != {"read"}:
        msg = "a tenant's token may only read: name a service to grant other rights"
        raise InvalidArgument(msg, details={"argument": "rights"})
    return frozenset(rights)


def check_types(types: Iterable[str], rights: frozenset[Right]) -> tuple[str, ...] | None:
    """Return the event types that a new token is limited to, or None for all.

    Raises:
        InvalidArgument: A type is malformed, a pattern is combined with the right to read, or any
            type is combined with the right to operate.
        LimitExceeded: There are more types than a query filter may have.
    """
    names = tuple(types)
    if len(names) > (limit := DEFAULT_LIMITS.predicates):
        # The types are added to each filter of the caller's queries, so they share its limit.
        msg = f"a token has at most {limit} types, as many as a filter (predicates): {len(names)}"
        details = {"limit": "predicates", "bound": limit, "actual": len(names)}
        raise LimitExceeded(msg, details=details)
    for name in names:
        if id_problem(name) or not is_pattern(name) or name == WILDCARD:
            msg = f"{name!r:.80} is neither an event type nor a pattern such as order.*"
            raise InvalidArgument(msg, details={"argument": "types"})
        if NameFilter.parse([name]).prefixes and "read" in rights:
            msg = f"a token that may read needs exact event types, not the pattern {name!r:.80}"
            raise InvalidArgument(msg, details={"argument": "types"})
    if names and "operate" in rights:
        msg = "the right operate covers all event types: omit the types"
        raise InvalidArgument(msg, details={"argument": "types"})
    return names or None
