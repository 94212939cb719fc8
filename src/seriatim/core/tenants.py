"""The rules for tenant names, and the reserved names."""

from __future__ import annotations

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.core.ids import id_problem

ALL_TENANTS = "*"  # means all tenants; no tenant can have this name


def tenant_problem(value: object) -> str | None:
    """Return why a value is not a valid name of one tenant, or None if it is."""
    if value == ALL_TENANTS:
        return f"must name one tenant: {ALL_TENANTS} stands for all of them"
    return id_problem(value)


def check_tenant(value: object, argument: str = "tenant_id") -> str:
    """Return a valid tenant name.

    Args:
        value: The name to check.
        argument: The name of the caller's argument, for the error.

    Raises:
        InvalidArgument: The value is not a valid name of one tenant.
    """
    if problem := tenant_problem(value):
        raise InvalidArgument(f"{argument} {problem}", details={"argument": argument})
    return str(value)


def is_infrastructure(tenant_id: str) -> bool:
    """Return whether this is the reserved tenant of infrastructure events."""
    return tenant_id == INFRASTRUCTURE_TENANT
