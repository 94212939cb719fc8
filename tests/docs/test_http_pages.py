"""The generated HTTP reference and OpenAPI document are up to date."""

import pytest

from seriatim.api.routes import ROUTES, Route
from seriatim.core.errors import ALL_ERRORS, SeriatimError
from seriatim.wire.problems import STATUS_BY_CODE, TOO_MANY_REQUESTS, status_for_error
from tests.docs.error_examples import raise_documented_errors
from tests.docs.http_pages import OPENAPI, PAGE, http_page, openapi_text
from tests.docs.pages import read, rows


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one.endpoint)
def test_every_route_has_a_section(route: Route) -> None:
    """Every route has its section in the HTTP reference."""
    assert f"\n### {route.endpoint}\n" in PAGE.read_text("utf-8")


def test_http_page_is_current() -> None:
    """The committed HTTP reference equals the generated one."""
    assert http_page() == PAGE.read_text("utf-8"), "run: make reference"


def test_openapi_document_is_current() -> None:
    """The committed OpenAPI document equals that of the service."""
    assert openapi_text() == OPENAPI.read_text("utf-8"), "run: make reference"


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.code)
def test_every_problem_has_an_example(kind: type[SeriatimError]) -> None:
    """L1: each code has an example of each of its statuses, raised by the code itself."""
    expected = {
        STATUS_BY_CODE[kind.code],
        *([TOO_MANY_REQUESTS] if kind.code == "limit_exceeded" else []),
    }

    assert expected == {
        status_for_error(error) for error in raise_documented_errors() if type(error) is kind
    }


def test_statuses_are_documented() -> None:
    """The page of errors lists the status of each code."""
    codes, _, _ = read("docs/reference/errors.md").partition("## Connections")
    documented = {row[0].strip("`"): row[3] for row in rows(codes)}
    expected = {code: str(status) for code, status in STATUS_BY_CODE.items()}

    assert expected | {"limit_exceeded": f"413, {TOO_MANY_REQUESTS}"} == documented
