"""The bar chart of a suite: the measured rates of both sides of each comparison."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes

from bench.measurement import Figure

mpl.use("svg")
from matplotlib import pyplot as plt

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
OURS, OTHERS, INK = "#2f7d5b", "#a9b0b8", "#22262b"
BAR = 0.38  # the height of a bar, as a share of its row
ROW_INCHES = 0.46


def draw(name: str, title: str, figures: Sequence[Figure], folder: Path = ASSETS) -> Path | None:
    """Draw the rates of all comparisons that have a goal as an SVG chart.

    Returns:
        The path of the chart; None without such rates, as of pages.
    """
    compared = [
        figure
        for figure in figures
        if figure.goal is not None and figure.events_per_s and figure.against_per_s
    ]
    if not compared:
        return None
    compared.reverse()
    mpl.rcParams["svg.hashsalt"] = name  # makes the file reproducible
    mpl.rcParams["svg.fonttype"] = "none"
    chart, axes = plt.subplots(
        figsize=(9.5, 1.4 + ROW_INCHES * len(compared)), layout="constrained"
    )
    for row, figure in enumerate(compared):
        _bar(axes, row + BAR / 2, figure.events_per_s or 0.0, "Seriatim", OURS)
        _bar(axes, row - BAR / 2, figure.against_per_s or 0.0, figure.against or "", OTHERS)
    axes.set_yticks(
        range(len(compared)), [figure.name.partition(" / ")[0] for figure in compared], fontsize=8
    )
    axes.set_ylim(-0.8, len(compared) - 0.2)
    axes.set_xlabel("events per second", fontsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.28)
    axes.tick_params(axis="both", length=0, labelsize=8, colors=INK)
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    chart.savefig(path, metadata={"Date": None})
    plt.close(chart)
    return path


def _bar(axes: Axes, at: float, rate: float, label: str, color: str) -> None:
    axes.barh(at, rate, height=BAR, color=color)
    axes.annotate(
        f"{rate:,.0f}/s {label}",
        (rate, at),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color=INK,
    )
