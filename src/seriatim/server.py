"""Serve a log over HTTP from a program, and manage the tokens and quotas of its service.

The extra `server` installs what `serve` and `make_app` need. Names are imported on first use, so
that tokens can be managed without it.

Example:
    from seriatim.server import ServiceLocation, ServiceSettings, make_app

    # An ASGI application, for any ASGI server that runs lifespan events.
    app = make_app(ServiceLocation(url="sqlite:///shop.db"), ServiceSettings())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim.core.extras import import_name

if TYPE_CHECKING:
    from seriatim.access.store import AccessStore
    from seriatim.api.server import ServiceLocation, make_app, serve
    from seriatim.api.service import ServiceSettings
    from seriatim.factory import access_url, open_access

__all__ = [
    "AccessStore",
    "ServiceLocation",
    "ServiceSettings",
    "access_url",
    "make_app",
    "open_access",
    "serve",
]

# The module that defines each name.
_MODULES = {
    "AccessStore": "seriatim.access.store",
    "ServiceLocation": "seriatim.api.server",
    "ServiceSettings": "seriatim.api.service",
    "access_url": "seriatim.factory",
    "make_app": "seriatim.api.server",
    "open_access": "seriatim.factory",
    "serve": "seriatim.api.server",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use.

    Raises:
        ModuleNotFoundError: A library is missing; the message names the extra that installs it.
    """
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = import_name(_MODULES[name], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
