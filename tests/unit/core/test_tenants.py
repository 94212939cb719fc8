"""The names of tenants."""

from __future__ import annotations

import pytest

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.core.tenants import check_tenant, is_infrastructure, tenant_problem


@pytest.mark.parametrize("name", ["default", "acme", "**", "a*", " *"[1:] + "x", "_infrastructure"])
def test_valid_tenant_names(name: str) -> None:
    """K2: any id except `*` is a valid tenant name."""
    assert tenant_problem(name) is None
    assert check_tenant(name) == name
    assert is_infrastructure(name) is (name == INFRASTRUCTURE_TENANT)


@pytest.mark.parametrize("name", ["*", "", " a", "a\n", 7, None])
def test_invalid_tenant_names(name: object) -> None:
    """K2: `*` stands for every tenant and is no valid name."""
    assert tenant_problem(name)
    with pytest.raises(InvalidArgument, match="tenant_id must"):
        check_tenant(name)
