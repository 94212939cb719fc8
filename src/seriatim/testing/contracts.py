"""All classes of the contract suite."""

from __future__ import annotations

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
