"""The signatures in the API reference equal those in the code."""

import ast
import inspect
from typing import Any

import pytest

from seriatim import Log
from seriatim.delivery.handlers import Handlers
from seriatim.log.projections import Projections
from seriatim.profiles.aggregates import Aggregates
from seriatim.profiles.facts import Facts
from seriatim.profiles.traces import Traces
from tests.docs.pages import read, rows, section

SECTIONS: dict[str, type] = {
    "`Log`": Log,
    "`Log.projections`": Projections,
    "`Log.handlers`": Handlers,
    "`Log.traces`": Traces,
    "`Log.facts`": Facts,
    "`Log.aggregates`": Aggregates,
}


def documented_signatures() -> dict[str, tuple[Any, str]]:
    """Return each documented method with its signature on the page."""
    page = read("docs/reference/api.md")
    return {
        f"{cls.__name__}.{name}": (getattr(cls, name), parameters.removesuffix(")"))
        for heading, cls in SECTIONS.items()
        for row in rows(section(page, heading))
        for name, opened, parameters in [row[0].strip("`").partition("(")]
        if opened
    }


DOCUMENTED = documented_signatures()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signatures_equal_the_code(name: str) -> None:
    """Names, order, kinds and defaults of the parameters are equal; `…` stands for a default."""
    method, parameters = DOCUMENTED[name]
    signature = inspect.signature(method)
    parsed = ast.parse(f"lambda self, {parameters.replace('…', '...')}: 0", mode="eval").body
    assert isinstance(parsed, ast.Lambda)
    arguments = parsed.args
    positional = [arg.arg for arg in arguments.args]
    required = len(positional) - len(arguments.defaults)
    defaults: dict[str, ast.expr | None] = dict(
        zip(positional, [*[None] * required, *arguments.defaults], strict=True)
    )
    if arguments.vararg is not None:
        defaults[arguments.vararg.arg] = None
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        defaults[argument.arg] = default

    assert list(defaults) == list(signature.parameters)
    for parameter in signature.parameters.values():
        keyword_only = parameter.name in [argument.arg for argument in arguments.kwonlyargs]
        assert keyword_only == (parameter.kind is parameter.KEYWORD_ONLY), parameter
        expression = defaults[parameter.name]
        assert (expression is None) == (parameter.default is parameter.empty), parameter
        if expression is not None and (value := ast.literal_eval(expression)) is not ...:
            assert value == parameter.default, parameter


def test_sections_document_all_methods() -> None:
    """Every section has signatures to check."""
    assert {name.partition(".")[0] for name in DOCUMENTED} == {
        cls.__name__ for cls in SECTIONS.values()
    }
