"""The contract suite: tests that every store must pass, built-in or your own.

Subclass a contract in your test module and provide the fixture `log`, which must return a new,
empty log for every test. Each class covers a part of the contract.
`CONTRACTS` lists all classes. The docstring of a test begins with the number of the contract line
that it proves.

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

import pytest

_MODULES = (
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

# Registered before the imports below, so that pytest shows the values of a failing assert.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))

from seriatim.store.memory import MemoryStore
from seriatim.store.port import Store
from seriatim.testing.aio import AsyncContract
from seriatim.testing.append import AppendContract
from seriatim.testing.bad_input import BadInputContract
from seriatim.testing.commands import CommandContract
from seriatim.testing.conditions import ConditionContract
from seriatim.testing.cursors import CursorContract
from seriatim.testing.decisions import DecisionContract
from seriatim.testing.declarations import DeclarationContract
from seriatim.testing.explanations import ExplanationContract
from seriatim.testing.failure_policies import FailurePolicyContract
from seriatim.testing.idempotency import IdempotencyContract
from seriatim.testing.identity import IdentityContract
from seriatim.testing.limits import LimitContract
from seriatim.testing.liveness import LivenessContract
from seriatim.testing.newest_first import NewestFirstContract, RelationContract
from seriatim.testing.patterns import PatternContract
from seriatim.testing.query import PredicateContract, QueryContract
from seriatim.testing.reads import ReadContract
from seriatim.testing.records import RecordContract
from seriatim.testing.safety import GuardContract, TenantContract
from seriatim.testing.subscriptions import SubscriptionContract
from seriatim.testing.telemetry import TelemetryContract
from seriatim.testing.traces import TraceContract

CONTRACTS: tuple[type, ...] = (
    AppendContract,
    AsyncContract,
    BadInputContract,
    CommandContract,
    ConditionContract,
    CursorContract,
    DecisionContract,
    DeclarationContract,
    ExplanationContract,
    FailurePolicyContract,
    GuardContract,
    IdempotencyContract,
    IdentityContract,
    LimitContract,
    LivenessContract,
    NewestFirstContract,
    PatternContract,
    PredicateContract,
    QueryContract,
    ReadContract,
    RecordContract,
    RelationContract,
    SubscriptionContract,
    TelemetryContract,
    TenantContract,
    TraceContract,
)

__all__ = [
    "CONTRACTS",
    "AppendContract",
    "AsyncContract",
    "BadInputContract",
    "CommandContract",
    "ConditionContract",
    "CursorContract",
    "DecisionContract",
    "DeclarationContract",
    "ExplanationContract",
    "FailurePolicyContract",
    "GuardContract",
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
]
