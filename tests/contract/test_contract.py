"""Run the shipped contract suite on every backend; the fixture `log` is in conftest.py."""

import re

import pytest

from seriatim import testing


class TestAppend(testing.AppendContract):
    """B1 to B11."""


class TestAsync(testing.AsyncContract):
    """B13 and E5, awaited."""


class TestBadInput(testing.BadInputContract):
    """A2 to A4, B2, L3."""


class TestCommand(testing.CommandContract):
    """C5."""


class TestCondition(testing.ConditionContract):
    """B8, B9, D5."""


class TestCursor(testing.CursorContract):
    """E5: cursors and leases."""


class TestDecision(testing.DecisionContract):
    """C8."""


class TestDeclaration(testing.DeclarationContract):
    """A5, A8."""


class TestExplanation(testing.ExplanationContract):
    """B1, C2, D5: explanations of appends."""


class TestFailurePolicy(testing.FailurePolicyContract):
    """E5: retry policies of subscriptions, and their operators."""


class TestGuard(testing.GuardContract):
    """K1."""


class TestIdempotency(testing.IdempotencyContract):
    """C1 to C4, C7."""


class TestIdentity(testing.IdentityContract):
    """F8."""


class TestLimit(testing.LimitContract):
    """K3."""


class TestManners(testing.LivenessContract):
    """B13, L2."""


class TestNewestFirst(testing.NewestFirstContract):
    """E7: newest first."""


class TestPattern(testing.PatternContract):
    """E7: patterns."""


class TestRelation(testing.RelationContract):
    """E7: correlation and causation."""


class TestPredicate(testing.PredicateContract):
    """D3."""


class TestQuery(testing.QueryContract):
    """D1, D2, D4, D6."""


class TestRead(testing.ReadContract):
    """E1 to E3."""


class TestRecord(testing.RecordContract):
    """A1 to A4."""


class TestSubscription(testing.SubscriptionContract):
    """E5, E6."""


class TestTelemetry(testing.TelemetryContract):
    """M1."""


class TestTenant(testing.TenantContract):
    """K2 within the library."""


class TestTrace(testing.TraceContract):
    """A5 to A7, L3, T1."""


def test_every_contract_runs() -> None:
    """F1: each class of the contract suite is run here."""
    run = {base for one in globals().values() if isinstance(one, type) for base in one.__bases__}

    assert run >= set(testing.CONTRACTS)
    assert sorted(testing.__all__) == sorted(
        [
            *("CONTRACTS", "MemoryStore", "Store"),
            *("Decided", "FoldedRows", "HandledEvent", "HandlerRunner"),
            *("check_batches", "fold", "given"),
            *(contract.__name__ for contract in testing.CONTRACTS),
        ]
    )


@pytest.mark.parametrize("contract", testing.CONTRACTS, ids=lambda one: one.__name__)
def test_every_test_cites_a_contract_line(contract: type) -> None:
    """F1: the docstring of each contract test starts with numbers of the contract."""
    tests = [value for name, value in vars(contract).items() if name.startswith("test_")]

    assert tests
    for one in tests:
        assert re.match(r"[A-Z]\d+(, [A-Z]\d+)*: \S", one.__doc__ or ""), one.__name__
