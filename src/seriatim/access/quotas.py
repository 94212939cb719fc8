"""Quotas: how many events and bytes per second a tenant may append, as token buckets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from seriatim.access.rights import check_one_tenant
from seriatim.core.errors import InvalidArgument, LimitExceeded

_BURST_S = 2.0  # a bucket holds the amount of so many seconds
_TENANTS_MAX = 10_000
_RATES = ("events_per_s", "bytes_per_s")
_RATE_MAX = 1e15


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """How much a tenant may append per second; 0 means unlimited."""

    tenant_id: str
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0


def check_quota(quota: Quota) -> None:
    """Raise `InvalidArgument` for a rate out of range, or a name that is not one tenant's."""
    check_one_tenant(quota.tenant_id)
    for name in _RATES:
        if not 0 <= getattr(quota, name) < _RATE_MAX:
            msg = f"{name} must be from 0 to {_RATE_MAX:g}, not {getattr(quota, name)!r:.40}"
            raise InvalidArgument(msg, details={"argument": name})


class _Bucket:
    """A token bucket that may go into debt; nothing passes until the debt is repaid."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._remaining = rate * _BURST_S
        self._updated = now

    def left(self, now: float) -> float:
        """Return the amount that may pass at once; negative while in debt."""
        full = self.rate * _BURST_S
        self._remaining = min(full, self._remaining + (now - self._updated) * self.rate)
        self._updated = now
        return self._remaining

    def wait(self, now: float, charged: float = 0.0) -> float:
        """Return the seconds until something may pass.

        `charged` is the part of the same request that the bucket has counted already.
        """
        left = self.left(now) + charged
        return 0.0 if left > 0 else (1e-3 * self.rate - left) / self.rate

    def take(self, amount: float) -> None:
        """Take an amount, into debt if it is large, so that one large append can pass."""
        self._remaining -= amount


class QuotaMeter:
    """Count what tenants send to this process, stored or not, and refuse what exceeds a quota."""

    def __init__(self, default: Quota, *, processes: int = 1) -> None:
        self.default = default
        # Processes do not share their counts: each grants an equal part of every quota.
        self._share = 1 / processes
        self._quotas: Mapping[str, Quota]
        self._buckets: dict[str, tuple[Quota, _Bucket | None, _Bucket | None]] = {}
        self.set_quotas([])

    def set_quotas(self, quotas: list[Quota]) -> None:
        """Replace the quotas of individual tenants."""
        self._quotas = {quota.tenant_id: quota for quota in quotas}
        self._has_quotas = any(
            quota.events_per_s or quota.bytes_per_s for quota in (self.default, *quotas)
        )

    def check(self, tenant_id: str, now: float, charged_bytes: int = 0) -> None:
        """Raise `LimitExceeded`, with the time to wait, if a tenant has used up its quota.

        Args:
            tenant_id: The tenant.
            now: The current time in seconds, from any monotonic clock.
            charged_bytes: How many bytes of the request itself are counted already.
        """
        if not self._has_quotas:
            return
        charged = 0, charged_bytes
        for name, bucket, size in zip(_RATES, self._find(tenant_id, now), charged, strict=True):
            if bucket is not None and (wait := bucket.wait(now, size)):
                raise _quota_exceeded_error(name, bucket.rate, wait)

    def left(self, quota: Quota, now: float) -> tuple[float | None, float | None]:
        """Return the events and bytes that this process would accept of a quota at once.

        None means that there is no limit.
        """
        cached = self._buckets.get(quota.tenant_id)
        buckets = cached[1:] if cached is not None and cached[0] == quota else None
        rates = quota.events_per_s * self._share, quota.bytes_per_s * self._share
        full = [rate * _BURST_S if rate else None for rate in rates]
        if buckets is None:  # nothing was sent under this quota
            return full[0], full[1]
        remaining = [None if bucket is None else bucket.left(now) for bucket in buckets]
        return remaining[0], remaining[1]

    def charge_bytes(self, tenant_id: str, size: int, now: float) -> None:
        """Count bytes of an append's request; a negative size takes an earlier charge back."""
        self._take(tenant_id, 0, size, now)

    def charge(
        self, tenant_id: str, events: int, size: int, now: float, charged_bytes: int = 0
    ) -> None:
        """Count the events and bytes of an append, or raise `LimitExceeded`.

        `charged_bytes` is how many bytes of the request are counted already.
        """
        self.check(tenant_id, now, charged_bytes)
        self._take(tenant_id, events, size, now)

    def _take(self, tenant_id: str, events: int, size: int, now: float) -> None:
        if not self._has_quotas:
            return
        for amount, bucket in zip((events, size), self._find(tenant_id, now), strict=True):
            if bucket is not None:
                bucket.take(amount)

    def _find(self, tenant_id: str, now: float) -> tuple[_Bucket | None, _Bucket | None]:
        """Return a tenant's buckets for events and for bytes."""
        quota = self._quotas.get(tenant_id, self.default)
        if not quota.events_per_s and not quota.bytes_per_s:
            return None, None
        cached = self._buckets.get(tenant_id)
        if cached is None or cached[0] != quota:
            if len(self._buckets) >= _TENANTS_MAX:
                # A forgotten tenant begins with a full bucket; keeping all would have no bound.
                self._buckets = {}
            cached = (
                quota,
                self._make_bucket(quota.events_per_s, now),
                self._make_bucket(quota.bytes_per_s, now),
            )
            self._buckets[tenant_id] = cached
        return cached[1:]

    def _make_bucket(self, rate: float, now: float) -> _Bucket | None:
        return _Bucket(rate * self._share, now) if rate else None


def _quota_exceeded_error(name: str, rate: float, wait: float) -> LimitExceeded:
    msg = f"the tenant's quota is used up ({name}: {rate:g}); wait {wait:.3f} s"
    details = {"limit": name, "bound": rate, "retry_after_s": round(wait, 3)}
    return LimitExceeded(msg, details=details, retryable=True)
