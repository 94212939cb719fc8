"""Equivalent calls of a page for curl, the command line and Python; they contain no token."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from seriatim.config import TOKEN_VARIABLE
from seriatim.console.page import ConsolePage
from seriatim.core.tenants import ALL_TENANTS


class EquivalentCalls(msgspec.Struct, frozen=True):
    """The same request as a curl command, a command of the CLI, and Python code."""

    curl: str
    cli: str
    python: str


class CallContext(msgspec.Struct, frozen=True):
    """The address of the service, and the tenant to name, None if the token implies it."""

    address: str
    tenant_id: str | None

    @classmethod
    def of(cls, page: ConsolePage) -> CallContext:
        """Return the context of a page."""
        host = page.request.headers.get(b"host", b"localhost").decode("latin-1")
        names_tenant = page.caller.tenant_id == ALL_TENANTS
        return cls(
            f"{page.request.scheme}://{host}", page.request.tenant_id if names_tenant else None
        )

    def curl(self, path: str, params: Mapping[str, str], body: Any = None) -> str:
        """Return a curl command; the shell inserts the token from its variable."""
        query = f"?{urlencode(params)}" if params else ""
        parts = ["curl", "-H", f'"Authorization: Bearer ${TOKEN_VARIABLE}"']
        if self.tenant_id is not None:
            parts += ["-H", shlex.quote(f"Seriatim-Tenant: {self.tenant_id}")]
        if body is not None:
            text = json.dumps(body, ensure_ascii=False)
            parts += ["-H", shlex.quote("Content-Type: application/json")]
            parts += ["--data-raw", shlex.quote(text)]
        return " ".join([*parts, shlex.quote(f"{self.address}{path}{query}")])

    def cli(self, command: str, options: Mapping[str, str]) -> str:
        """Return a command of the CLI."""
        arguments = {"url": self.address, **options}
        if self.tenant_id is not None:
            arguments["tenant"] = self.tenant_id
        parts = [shlex.quote(f"--{name}={value}") for name, value in arguments.items()]
        return " ".join(["seriatim", command, *parts])

    def python(self, expression: str) -> str:
        """Return Python code that evaluates an expression over `log`."""
        tenant = "" if self.tenant_id is None else f", tenant_id={self.tenant_id!r}"
        return (
            f"import seriatim\n\nwith seriatim.open({self.address!r}{tenant}) as log:\n"
            f"    {expression}"
        )


def make_event_calls(context: CallContext, event_id: str) -> EquivalentCalls:
    """Return the calls that read one event."""
    return EquivalentCalls(
        context.curl("/v1/event", {"event_id": event_id}),
        context.cli("read", {"event-id": event_id}),
        context.python(f"print(log.event({event_id!r}))"),
    )


def make_query_calls(context: CallContext, query: Mapping[str, Any], limit: int) -> EquivalentCalls:
    """Return the calls that run a query."""
    return EquivalentCalls(
        context.curl("/v1/query", {}, {"query": query, "limit": limit}),
        context.cli("query", {"query": json.dumps(query, ensure_ascii=False), "limit": str(limit)}),
        context.python(
            f"result = log.query(seriatim.Query.from_mapping({dict(query)!r}), limit={limit})\n"
            "    print(result.context_version, result.records)"
        ),
    )
