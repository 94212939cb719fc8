"""Roles and read models: required privileges, and errors without them."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from seriatim.core.errors import BackendFailure
from seriatim.factory import open_read_model
from tests.integration.postgres.conftest import as_role
from tests.integration.readmodel_support import (
    begin_and_claim,
    make_step,
    seat_rows,
    seats,
    short_rows,
)

MakeRole = Callable[..., str]


def test_role_without_privileges_is_refused(postgres_url: str, make_role: MakeRole) -> None:
    """L2: a role without privileges on the read model gets an error that says so."""
    url = as_role(postgres_url, make_role())

    with pytest.raises(
        BackendFailure, match="the role lacks privileges on the read model"
    ) as caught:
        open_read_model(f"{url}?schema=read")
    assert not caught.value.retryable


def test_role_needs_privileges_on_its_schema_only(postgres_url: str, make_role: MakeRole) -> None:
    """F2: a role needs rights on its schema only, not on the database."""
    role = make_role()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create schema read")
        connection.execute(f"grant usage, create on schema read to {role}")
    model = open_read_model(f"{as_role(postgres_url, role)}?schema=read")
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)

    assert short_rows(model) == {"1a": 1}
    model.close()


def test_a_read_only_role_reads_but_does_not_write(postgres_url: str, make_role: MakeRole) -> None:
    """I6: a role that may only read can read the progress of a projection; writes are refused."""
    owner = open_read_model(f"{postgres_url}?schema=read")
    token = begin_and_claim(owner)
    owner.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    role = make_role()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"grant usage on schema read to {role}")
        connection.execute(f"grant select on all tables in schema read to {role}")
    model = open_read_model(f"{as_role(postgres_url, role)}?schema=read")

    assert short_rows(model) == {"1a": 1}
    assert model.list_progress()[0].position == 1
    with pytest.raises(BackendFailure, match="the role lacks privileges on the read model"):
        model.commit(seats, make_step(1, 2), token=token)
    with pytest.raises(BackendFailure, match="the role lacks privileges on the read model"):
        model.claim("seats", "me", 1)
    model.close()
    owner.close()
