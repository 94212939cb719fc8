"""The dashboard displays every metric, and no unknown one."""

import json
import re
from typing import Any

from seriatim.telemetry.metric_families import FAMILIES
from tests.docs.pages import DOCS

DASHBOARD: dict[str, Any] = json.loads((DOCS / "assets/grafana-seriatim.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
HISTOGRAMS = {family.name for family in FAMILIES if family.kind == "histogram"}


def queries() -> list[str]:
    """Return the Prometheus queries of the panels."""
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def displayed_metrics() -> set[str]:
    """Return the metrics in the queries, histograms without the suffixes of their parts."""
    found = {name for query in queries() for name in re.findall(r"seriatim_\w+", query)}
    parts = {f"{name}{part}": name for name in HISTOGRAMS for part in ("_bucket", "_count", "_sum")}
    return {parts.get(name, name) for name in found}


def test_every_metric_is_on_the_dashboard() -> None:
    """M2: the dashboard displays each metric of the code, and no other."""
    assert displayed_metrics() == {one.name for one in FAMILIES}


def test_labels_are_those_of_the_metrics() -> None:
    """M2: panels group, filter and label only by labels of their metrics."""
    known = {one.name: {*one.labels, "instance", "le"} for one in FAMILIES}
    for panel in PANELS:
        for target in panel["targets"]:
            [name] = re.findall(r"seriatim_\w+", target["expr"])
            bare = name.removesuffix("_bucket")
            used = set(re.findall(r"(\w+)=~", target["expr"]))
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                used |= {label.strip() for label in group.split(",")}
            used |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= known[bare], (panel["title"], used)


def test_the_shape_that_grafana_takes() -> None:
    """M2: a title, a uid, rows, panels with places, targets, and a data source to choose."""
    rows = [one["title"] for one in DASHBOARD["panels"] if one["type"] == "row"]
    ids = [one["id"] for one in DASHBOARD["panels"]]
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}

    assert (DASHBOARD["title"], DASHBOARD["uid"]) == ("Seriatim", "seriatim")
    assert DASHBOARD["schemaVersion"] >= 36
    assert rows == ["Log", "Service", "Projections", "Delivery"]
    assert len(set(ids)) == len(ids)
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        assert panel["title"]
        assert panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_do_not_cover_each_other() -> None:
    """M2: no two panels overlap."""
    taken: set[tuple[int, int]] = set()
    for one in DASHBOARD["panels"]:
        place = one["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells
