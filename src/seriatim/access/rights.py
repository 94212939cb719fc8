"""What a caller may do: one tenant or all, some event types or all, append, read or operate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from seriatim.core.errors import Forbidden, InvalidArgument, LimitExceeded
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.ids import id_problem
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.core.patterns import ALL, Names, is_pattern
from seriatim.core.query import Filter, Query
from seriatim.core.tenants import EVERY_TENANT, is_infrastructure, tenant_problem

Right = Literal["append", "read", "operate", "act_as"]
RIGHTS: tuple[Right, ...] = get_args(Right)
ANONYMOUS = "anonymous"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, as its token says; without a subject nobody is named as the actor of events."""

    subject: str
    tenant_id: str = EVERY_TENANT
    rights: frozenset[Right] = frozenset(RIGHTS)
    types: tuple[str, ...] | None = None
    service: bool = True
    token_id: str = ""

    def tenant(self, named: str | None) -> str:
        """Return the tenant that a request is about, or refuse the one it names."""
        wanted = self._named(named)
        operates = self.service and "operate" in self.rights
        if is_infrastructure(wanted) and not operates:
            raise Forbidden("this token does not reach the tenant of the infrastructure")
        return wanted

    def _named(self, named: str | None) -> str:
        if self.tenant_id != EVERY_TENANT:
            if named not in (None, self.tenant_id):
                raise Forbidden("this token is for another tenant")
            return self.tenant_id
        wanted = DEFAULT_TENANT if named is None else named
        check_one_tenant(wanted)
        return wanted

    def demand(self, right: Right, *, service: bool = False) -> None:
        """Refuse what the token does not allow."""
        if right not in self.rights:
            raise Forbidden(f"this token lacks the right {right}", details={"right": right})
        if service and not self.service:
            raise Forbidden("this needs the token of a service", details={"right": "service"})

    def demand_types(self, wanted: Iterable[object]) -> None:
        """Refuse event types outside the token's scope."""
        if self.types is None:
            return
        allowed = Names.of(self.types)
        for event_type in wanted:
            if not isinstance(event_type, str) or not allowed.allows(event_type):
                raise Forbidden("this token is not for events of this type")

    def demand_all_types(self) -> None:
        """Refuse what cannot be confined to a scope of event types."""
        if self.types is not None:
            raise Forbidden("this token is for some event types only, this is about all of them")

    def sees(self, event_type: str) -> bool:
        """Tell whether a read may show events of a type."""
        return self.types is None or Names.of(self.types).allows(event_type)

    def scoped_types(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the types that a read may show of those that it asks for."""
        if self.types is None:
            return wanted
        if wanted is None:
            return self.types
        return Names.of(wanted).both(Names.of(self.types)).texts()

    def scoped(self, query: Query) -> Query:
        """Return a query that shows no types outside the scope."""
        if self.types is None:
            return query
        filters = query.filters or [Filter()]
        return Query(
            [
                msgspec.structs.replace(
                    one, types=self.scoped_types(None if one.types is None else tuple(one.types))
                )
                for one in filters
            ],
            query.min_position,
        )


def check_one_tenant(tenant_id: str) -> None:
    """Refuse what is no name of one tenant."""
    if problem := tenant_problem(tenant_id):
        raise InvalidArgument(f"the tenant {problem}", details={"argument": "tenant"})


def check_rights(given: Iterable[str], *, service: bool) -> frozenset[Right]:
    """Return the rights of a new token; who is no service only reads."""
    rights: set[Right] = set()
    for one in given:
        known = next((right for right in RIGHTS if right == one), None)
        if known is None:
            msg = f"there is no right {one!r:.40}: {', '.join(RIGHTS)}"
            raise InvalidArgument(msg, details={"argument": "rights"})
        rights.add(known)
    if not rights:
        msg = f"a token needs a right: {', '.join(RIGHTS)}"
        raise InvalidArgument(msg, details={"argument": "rights"})
    if not service and rights != {"read"}:
        msg = "tenants only read: what else is to be done needs the token of a service"
        raise InvalidArgument(msg, details={"argument": "rights"})
    return frozenset(rights)


def check_types(types: Iterable[str], rights: frozenset[Right]) -> tuple[str, ...] | None:
    """Return the scope of a new token; reads are confined by exact types alone."""
    given = tuple(types)
    if len(given) > (bound := DEFAULT_LIMITS.predicates):
        # A token for more could not query: its types are those of each filter.
        msg = f"a token has at most {bound} types, as many as a filter (predicates): {len(given)}"
        details = {"limit": "predicates", "bound": bound, "actual": len(given)}
        raise LimitExceeded(msg, details=details)
    for one in given:
        if id_problem(one) or not is_pattern(one) or one == ALL:
            msg = f"{one!r:.80} is neither an event type nor a pattern such as order.*"
            raise InvalidArgument(msg, details={"argument": "types"})
        if Names.of([one]).prefixes and "read" in rights:
            msg = f"reads are confined by exact types, not by {one!r:.80}"
            raise InvalidArgument(msg, details={"argument": "types"})
    if given and "operate" in rights:
        msg = "operating is about all event types: give no types"
        raise InvalidArgument(msg, details={"argument": "types"})
    return given or None
