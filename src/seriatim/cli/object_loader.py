"""Import of the objects that users declare in their own modules, named as `module:name`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from seriatim.core.errors import InvalidArgument
from seriatim.log.arguments import invalid_argument


def load_object(path: str, argument: str) -> Any:
    """Import an object of a user's module; modules in the current folder are found, too.

    Args:
        path: The object as `module:name`.
        argument: The name of the command-line argument, for error messages.

    Returns:
        The object, or None if the module has no such name.

    Raises:
        InvalidArgument: If `path` has no colon or the module cannot be imported.

    """
    module_name, colon, name = path.partition(":")
    if not colon:
        raise invalid_argument(argument, f"{path!r:.80} must be given as module:name")
    # The installed program does not have the current folder on its path; `python -m` does.
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        msg = f"the module {module_name!r:.80} cannot be imported: {error}"
        raise InvalidArgument(msg, details={"argument": argument}) from error
    finally:
        sys.path.remove("")
