"""Built-in projections, which also serve as examples."""

from seriatim.core.projection import Projection
from seriatim.pipeline.shipped.activity import activity
from seriatim.pipeline.shipped.aggregate_states import aggregate_states
from seriatim.pipeline.shipped.decision_graph import decision_graph

SHIPPED: dict[str, Projection] = {
    each.name: each for each in (activity, aggregate_states, decision_graph)
}

__all__ = ["SHIPPED", "activity", "aggregate_states", "decision_graph"]
