"""A smoke test of the service benchmark: every section runs and compares."""

from collections.abc import Callable, Iterator

import pytest

from bench.measurement import Figure
from bench.service.plan import SECTIONS as NAMES
from bench.service.plan import ServiceEnvironment, ServicePlan, parse_plan
from bench.service.suite import SECTIONS, set_up

PLAN = ServicePlan(
    events=500,
    rounds=1,
    seconds=0.2,
    tails=10,
    tail_seconds=0.3,
    tail_rate=50,
    quick=True,
)


@pytest.fixture(scope="module")
def environment() -> Iterator[ServiceEnvironment]:
    """A small log, a service on it, and a competing event store."""
    with set_up(PLAN) as made:
        yield made


def test_sections_of_the_command_line_are_those_that_run() -> None:
    """The command line offers the sections that run, in the same order."""
    assert tuple(SECTIONS) == NAMES
    assert not parse_plan(["--quick"]).is_publishable
    assert parse_plan([]).is_publishable


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_returns_positive_figures(
    section: Callable[[ServiceEnvironment], list[Figure]], environment: ServiceEnvironment
) -> None:
    """Each section returns figures above zero, one with a goal, and appends to the log."""
    before = environment.log.log.head()
    figures = section(environment)

    assert any(figure.goal is not None for figure in figures)
    assert all(figure.measured > 0 for figure in figures)
    assert environment.log.log.head() > before
