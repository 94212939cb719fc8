"""Demo step: one append sent many times concurrently, and once with different content."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from seriatim import AppendResult, IdempotencyConflict, NewEvent
from seriatim.examples.demo_report import DemoReport

CALLS = 24


def _pay(report: DemoReport, amount: str) -> AppendResult:
    payload: dict[str, Any] = {"invoice": "2025-0117", "amount": amount, "currency": "EUR"}
    event = NewEvent("invoice.paid", payload, stream=("invoice", "2025-0117"))
    return report.log.append([event], idempotency_key="payment-2025-0117")


def run(report: DemoReport) -> None:
    """Send a payment from many threads, then with a different amount."""
    report.start_step(
        f"an idempotent retry: the same payment sent {CALLS} times concurrently",
        "Proves: one event is stored, every caller gets its receipt, other content is refused.",
    )
    before = report.log.head()
    with ThreadPoolExecutor(CALLS) as pool:
        receipts = list(pool.map(lambda _: _pay(report, "1250.00"), range(CALLS)))
    ids = {receipt.records[0].event_id for receipt in receipts}
    stored = sum(not receipt.replayed for receipt in receipts)
    position = receipts[0].first_position
    report.print(f"{CALLS} receipts for position {position}: {stored} stored, the rest replayed")
    report.check(f"{CALLS} calls, 1 event", len(ids) == stored == report.log.head() - before == 1)
    refusal = None
    try:
        _pay(report, "9999.00")
    except IdempotencyConflict as error:
        refusal = error
    report.show_refusal("the same key with a different amount", refusal)
    report.check("a retry with different content is refused", refusal is not None)
