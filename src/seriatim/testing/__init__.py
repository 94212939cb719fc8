"""The contract suite: tests that every store must pass, built-in or your own.

Subclass a contract in your test module and provide the fixture `log`:

    import pytest, seriatim.testing
    from seriatim import Log

    class TestMine(seriatim.testing.AppendContract):
        @pytest.fixture
        def log(self):
            with Log(MyStore()) as log:
                yield log

Each class covers a part of the contract. The fixture must return a new, empty log for every test.
`CONTRACTS` lists all classes. The docstring of a test begins with the number of the contract line
that it proves.
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
    "factories",
    "guards",
    "idempotency",
    "identity",
    "limits",
    "liveness",
    "newest_first",
    "patterns",
    "query",
    "reads",
    "records",
    "subscriptions",
    "telemetry",
    "tenants",
    "traces",
)

# Registered before the imports below, so that pytest shows the values of a failing assert.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))

from seriatim.store.memory import MemoryStore  # noqa: E402
from seriatim.store.port import Store  # noqa: E402
from seriatim.testing.aio import AsyncContract  # noqa: E402
from seriatim.testing.append import AppendContract  # noqa: E402
from seriatim.testing.bad_input import BadInputContract  # noqa: E402
from seriatim.testing.commands import CommandContract  # noqa: E402
from seriatim.testing.conditions import ConditionContract  # noqa: E402
from seriatim.testing.cursors import CursorContract  # noqa: E402
from seriatim.testing.decisions import DecisionContract  # noqa: E402
from seriatim.testing.declarations import DeclarationContract  # noqa: E402
from seriatim.testing.guards import GuardContract  # noqa: E402
from seriatim.testing.idempotency import IdempotencyContract  # noqa: E402
from seriatim.testing.identity import IdentityContract  # noqa: E402
from seriatim.testing.limits import LimitContract  # noqa: E402
from seriatim.testing.liveness import LivenessContract  # noqa: E402
from seriatim.testing.newest_first import NewestFirstContract, RelationContract  # noqa: E402
from seriatim.testing.patterns import PatternContract  # noqa: E402
from seriatim.testing.query import PredicateContract, QueryContract  # noqa: E402
from seriatim.testing.reads import ReadContract  # noqa: E402
from seriatim.testing.records import RecordContract  # noqa: E402
from seriatim.testing.subscriptions import SubscriptionContract  # noqa: E402
from seriatim.testing.telemetry import TelemetryContract  # noqa: E402
from seriatim.testing.tenants import TenantContract  # noqa: E402
from seriatim.testing.traces import TraceContract  # noqa: E402

CONTRACTS: tuple[type, ...] = (
    AppendContract,
    AsyncContract,
    BadInputContract,
    CommandContract,
    ConditionContract,
    CursorContract,
    DecisionContract,
    DeclarationContract,
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
