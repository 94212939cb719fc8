"""Tests of your own code and store: scenarios, and the contract suite that every store must pass.

For your own code:

    given(…).when(…).then(…)     a decider or an aggregate decides events
    fold, check_batches          a projection folds a list of events
    HandlerRunner                a handler runs, with a clock and failures of the test

For a store, subclass a contract in your test module and provide the fixture `log`, which must
return a new, empty log for every test. Each class covers a part of the contract. `CONTRACTS` lists
all classes. The docstring of a test begins with the number of the contract line that it proves.

Names are imported on first use: the helpers need no pytest, and the plugin of pytest with the
fixtures `memory_log` and `sqlite_log` is loaded without this package.

Example:
    import pytest
    import seriatim.testing
    from seriatim import Log
    from seriatim.testing import MemoryStore  # in place of your own store

    class TestMine(seriatim.testing.AppendContract):
        @pytest.fixture
        def log(self):
            with Log(MemoryStore()) as log:
                yield log
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from seriatim.core.extras import import_name

if TYPE_CHECKING:
    from seriatim.store.memory import MemoryStore
    from seriatim.store.port import Store
    from seriatim.testing.aio import AsyncContract
    from seriatim.testing.append import AppendContract
    from seriatim.testing.bad_input import BadInputContract
    from seriatim.testing.commands import CommandContract
    from seriatim.testing.conditions import ConditionContract
    from seriatim.testing.contracts import CONTRACTS
    from seriatim.testing.cursors import CursorContract
    from seriatim.testing.decisions import DecisionContract
    from seriatim.testing.declarations import DeclarationContract
    from seriatim.testing.explanations import ExplanationContract
    from seriatim.testing.failure_policies import FailurePolicyContract
    from seriatim.testing.handler_runner import HandledEvent, HandlerRunner
    from seriatim.testing.idempotency import IdempotencyContract
    from seriatim.testing.identity import IdentityContract
    from seriatim.testing.limits import LimitContract
    from seriatim.testing.liveness import LivenessContract
    from seriatim.testing.newest_first import NewestFirstContract, RelationContract
    from seriatim.testing.patterns import PatternContract
    from seriatim.testing.projection_rows import FoldedRows, check_batches, fold
    from seriatim.testing.query import PredicateContract, QueryContract
    from seriatim.testing.reads import ReadContract
    from seriatim.testing.records import RecordContract
    from seriatim.testing.safety import GuardContract, TenantContract
    from seriatim.testing.scenario import Decided, given
    from seriatim.testing.subscriptions import SubscriptionContract
    from seriatim.testing.telemetry import TelemetryContract
    from seriatim.testing.traces import TraceContract

# The modules of the contract suite, whose asserts pytest rewrites to show values.
_CONTRACT_MODULES = (
    "aio",
    "append",
    "bad_input",
    "commands",
    "conditions",
    "cursors",
    "decisions",
    "declarations",
    "explanations",
    "factories",
    "failure_policies",
    "idempotency",
    "identity",
    "limits",
    "liveness",
    "newest_first",
    "patterns",
    "query",
    "reads",
    "records",
    "safety",
    "subscriptions",
    "telemetry",
    "traces",
)

# Before these modules are imported. Without pytest there is nothing to rewrite.
if (pytest := sys.modules.get("pytest")) is not None:
    pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _CONTRACT_MODULES))

# The module that defines each name.
_MODULES = {
    "AppendContract": "seriatim.testing.append",
    "AsyncContract": "seriatim.testing.aio",
    "BadInputContract": "seriatim.testing.bad_input",
    "CONTRACTS": "seriatim.testing.contracts",
    "CommandContract": "seriatim.testing.commands",
    "ConditionContract": "seriatim.testing.conditions",
    "CursorContract": "seriatim.testing.cursors",
    "Decided": "seriatim.testing.scenario",
    "DecisionContract": "seriatim.testing.decisions",
    "DeclarationContract": "seriatim.testing.declarations",
    "ExplanationContract": "seriatim.testing.explanations",
    "FailurePolicyContract": "seriatim.testing.failure_policies",
    "FoldedRows": "seriatim.testing.projection_rows",
    "GuardContract": "seriatim.testing.safety",
    "HandledEvent": "seriatim.testing.handler_runner",
    "HandlerRunner": "seriatim.testing.handler_runner",
    "IdempotencyContract": "seriatim.testing.idempotency",
    "IdentityContract": "seriatim.testing.identity",
    "LimitContract": "seriatim.testing.limits",
    "LivenessContract": "seriatim.testing.liveness",
    "MemoryStore": "seriatim.store.memory",
    "NewestFirstContract": "seriatim.testing.newest_first",
    "PatternContract": "seriatim.testing.patterns",
    "PredicateContract": "seriatim.testing.query",
    "QueryContract": "seriatim.testing.query",
    "ReadContract": "seriatim.testing.reads",
    "RecordContract": "seriatim.testing.records",
    "RelationContract": "seriatim.testing.newest_first",
    "Store": "seriatim.store.port",
    "SubscriptionContract": "seriatim.testing.subscriptions",
    "TelemetryContract": "seriatim.testing.telemetry",
    "TenantContract": "seriatim.testing.safety",
    "TraceContract": "seriatim.testing.traces",
    "check_batches": "seriatim.testing.projection_rows",
    "fold": "seriatim.testing.projection_rows",
    "given": "seriatim.testing.scenario",
}

__all__ = [
    "CONTRACTS",
    "AppendContract",
    "AsyncContract",
    "BadInputContract",
    "CommandContract",
    "ConditionContract",
    "CursorContract",
    "Decided",
    "DecisionContract",
    "DeclarationContract",
    "ExplanationContract",
    "FailurePolicyContract",
    "FoldedRows",
    "GuardContract",
    "HandledEvent",
    "HandlerRunner",
    "IdempotencyContract",
    "IdentityContract",
    "LimitContract",
    "LivenessContract",
    "MemoryStore",
    "NewestFirstContract",
    "PatternContract",
    "PredicateContract",
    "QueryContract",
    "ReadContract",
    "RecordContract",
    "RelationContract",
    "Store",
    "SubscriptionContract",
    "TelemetryContract",
    "TenantContract",
    "TraceContract",
    "check_batches",
    "fold",
    "given",
]


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = import_name(_MODULES[name], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
