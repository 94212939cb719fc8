"""Finding what users declare in their own modules, by `module:name`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from seriatim.core.errors import InvalidArgument
from seriatim.log.arguments import bad


def declared(what: str, argument: str) -> Any:
    """Return what a module of the user's has under a name; the working folder is looked at too."""
    module_name, colon, name = what.partition(":")
    if not colon:
        raise bad(argument, f"{what!r:.80} is named as module:name")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        msg = f"the module {module_name!r:.80} cannot be imported: {error}"
        raise InvalidArgument(msg, details={"argument": argument}) from error
    finally:
        sys.path.remove("")
