"""Typed copies of signatures: an asyncio method takes the parameters of the blocking method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def copy_parameters(
    source: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Return a decorator that gives a method the parameters of another, but its own result.

    The decorated method passes its arguments on to `source`. Type checkers, editors and `help`
    see each parameter of `source` with its type and default, without a second list of them.

    Args:
        source: A method; its first parameter is `self`.
    """

    def copy(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        returned = inspect.signature(method).return_annotation
        signature = inspect.signature(source).replace(return_annotation=returned)
        method.__signature__ = signature  # type: ignore[attr-defined] # read by inspect
        return method

    return copy
