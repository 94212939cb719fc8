"""The plot: how many times its goal each figure reached, on one logarithmic axis."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes

from bench.harness import Figure

mpl.use("svg")
from matplotlib import pyplot as plt

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
OK, SHORT, AIM, INK = "#2f7d5b", "#c4572e", "#8a8f98", "#22262b"
ROW_INCHES = 0.34
SMALLEST = 0.05
TICKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def draw(name: str, title: str, figures: Sequence[Figure], folder: Path = ASSETS) -> Path:
    """Draw the figures that compare rates, best known first in the table, as SVG and PNG."""
    shown = [one for one in figures if one.goal is not None and one.unit == "x"]
    shown.reverse()
    mpl.rcParams["svg.hashsalt"] = name  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    chart, axes = plt.subplots(figsize=(9.5, 1.4 + ROW_INCHES * len(shown)), layout="constrained")
    for row, figure in enumerate(shown):
        _bar(axes, row, figure)
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), [one.name for one in shown], fontsize=8)
    axes.set_xlabel("measured / goal (the line is the goal, a mark the aim)", fontsize=8)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlim(*_span(shown))
    axes.tick_params(axis="both", length=0, labelsize=8, colors=INK)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    chart.savefig(path, metadata={"Date": None})
    plt.close(chart)
    return path


def _span(figures: Sequence[Figure]) -> tuple[float, float]:
    shares = [1.0]
    for figure in figures:
        assert figure.goal is not None
        shares += [figure.measured / figure.goal, (figure.aim or figure.goal) / figure.goal]
    return max(SMALLEST, min(shares) / 1.3), max(shares) * 1.5


def _bar(axes: Axes, row: int, figure: Figure) -> None:
    assert figure.goal is not None
    share = max(figure.measured / figure.goal, SMALLEST)
    axes.barh(row, share - 1.0, left=1.0, height=0.62, color=OK if figure.ok else SHORT)
    if figure.aim is not None:
        axes.plot(figure.aim / figure.goal, row, marker="|", markersize=11, color=AIM, mew=2)
    axes.annotate(
        f"{figure.measured:.2f}",
        (max(share, 1.0), row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=INK,
    )
