"""Which names a tenant may have, and the names that stand for something else."""

from __future__ import annotations

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.core.ids import id_problem

EVERY_TENANT = "*"  # stands for all tenants, and is the name of none


def tenant_problem(value: object) -> str | None:
    """Say why a value cannot name one tenant, None when it can."""
    if value == EVERY_TENANT:
        return f"must be one: {EVERY_TENANT} stands for all of them"
    return id_problem(value)


def check_tenant(value: object, argument: str = "tenant_id") -> str:
    """Return the name of one tenant, or refuse it with `invalid_argument`."""
    if problem := tenant_problem(value):
        raise InvalidArgument(f"{argument} {problem}", details={"argument": argument})
    return str(value)


def is_infrastructure(tenant_id: str) -> bool:
    """Tell whether this is the reserved tenant of infrastructure events."""
    return tenant_id == INFRASTRUCTURE_TENANT
