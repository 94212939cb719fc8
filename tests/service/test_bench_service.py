"""The benchmark of the service on a few thousand events: every section runs and compares."""

from collections.abc import Callable, Iterator

import pytest

from bench.harness import Figure
from bench.service import SECTIONS, raised
from bench.service_plan import SECTIONS as NAMES
from bench.service_plan import ServicePlan, ServiceStage, plan_from

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
def stage() -> Iterator[ServiceStage]:
    """A small log, a service on it, and a rival."""
    with raised(PLAN) as made:
        yield made


def test_every_section_is_there() -> None:
    """What the command line offers is what runs, in its order."""
    assert tuple(SECTIONS) == NAMES
    assert not plan_from(["--quick"]).whole
    assert plan_from([]).whole


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_gives_figures(
    section: Callable[[ServiceStage], list[Figure]], stage: ServiceStage
) -> None:
    """Each section compares with a goal, and counts what was really stored."""
    before = stage.log.log.head()
    figures = section(stage)

    assert any(figure.goal is not None for figure in figures)
    assert all(figure.measured > 0 for figure in figures)
    assert stage.log.log.head() > before
