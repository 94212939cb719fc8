"""Signatures that are spelled once: copies of parameters, and keywords declared as a TypedDict."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Method = TypeVar("Method", bound=Callable[..., Any])


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
        _set_signature(method, signature)
        return method

    return copy


def list_keywords(source: Callable[..., Any], keywords: type) -> Callable[[Method], Method]:
    """Return a decorator that lists the keywords of `**name: Unpack[keywords]` in `help`.

    Type checkers and editors know them from the TypedDict; `inspect` displays `**name` alone.

    Args:
        source: A function with the same keywords as parameters, for their defaults.
        keywords: The TypedDict.
    """

    def list_all(method: Method) -> Method:
        signature = inspect.signature(method)
        *own, _ = signature.parameters.values()
        defaults = inspect.signature(source).parameters
        listed = [defaults[name] for name in keywords.__annotations__]
        _set_signature(method, signature.replace(parameters=[*own, *listed]))
        return method

    return list_all


def _set_signature(method: Callable[..., Any], signature: inspect.Signature) -> None:
    method.__signature__ = signature  # type: ignore[attr-defined] # read by inspect
