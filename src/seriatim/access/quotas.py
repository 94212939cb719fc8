"""Quotas: how many events and bytes a second a tenant may append, counted in buckets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from seriatim.access.desk import Desk
from seriatim.access.rights import check_one_tenant
from seriatim.core.errors import InvalidArgument, LimitExceeded

_BURST_S = 2.0  # a bucket holds what comes in so long
_KEPT_MAX = 10_000
_BOUNDS = ("events_per_s", "bytes_per_s")


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may append in a second; 0 means no bound."""

    tenant_id: str
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0


class Quotas(Desk):
    """The quotas of single tenants, for every process of the service."""

    def quotas(self) -> list[Quota]:
        """Return them all."""
        return [
            Quota(tenant_id=tenant_id, events_per_s=events, bytes_per_s=size)
            for tenant_id, events, size in self._look("quotas")
        ]

    def set_quota(self, quota: Quota) -> None:
        """Set a tenant's quota."""
        check_one_tenant(quota.tenant_id)
        for name in _BOUNDS:
            if not 0 <= getattr(quota, name) < 1e15:  # noqa: PLR2004 - more than can be
                raise InvalidArgument(f"{name} must not be negative", details={"argument": name})
        self._run("set_quota", **msgspec.structs.asdict(quota))

    def remove_quota(self, tenant_id: str) -> bool:
        """Let the general quota hold for a tenant again."""
        return bool(self._run("remove_quota", tenant_id=tenant_id))


class _Bucket:
    """What is left of a rate; a debt is worked off before anything more passes."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = rate * _BURST_S
        self._seen = now

    def wait(self, now: float, own: float = 0.0) -> float:
        """Return in how many seconds something may pass; `own` is what it has paid already."""
        full = self.rate * _BURST_S
        self._left = min(full, self._left + (now - self._seen) * self.rate)
        self._seen = now
        left = self._left + own
        return 0.0 if left > 0 else (1e-3 * self.rate - left) / self.rate

    def take(self, amount: float) -> None:
        """Take something, into debt if it is large: a single large append passes, and is paid."""
        self._left -= amount


class Meter:
    """Counts what tenants send in this process, stored or not, and refuses what is too much."""

    def __init__(self, general: Quota, *, processes: int = 1) -> None:
        self._general = general
        self._share = 1 / processes
        self._own: Mapping[str, Quota]
        self._buckets: dict[str, tuple[Quota, _Bucket | None, _Bucket | None]] = {}
        self.know([])

    def know(self, quotas: list[Quota]) -> None:
        """Take the quotas of single tenants, as they are now."""
        self._own = {quota.tenant_id: quota for quota in quotas}
        self._counts = any(
            quota.events_per_s or quota.bytes_per_s for quota in (self._general, *quotas)
        )

    def check(self, tenant_id: str, now: float, own: int = 0) -> None:
        """Refuse a tenant that has used its quota up, with the time after which it may come.

        `own` is how many bytes of the request itself are counted already.
        """
        if not self._counts:
            return
        paid = 0, own
        for name, bucket, size in zip(_BOUNDS, self._of(tenant_id, now), paid, strict=True):
            if bucket is not None and (wait := bucket.wait(now, size)):
                raise _too_much(name, bucket.rate, wait)

    def charge_bytes(self, tenant_id: str, size: int, now: float) -> None:
        """Count bytes of an append's request; negative ones were announced and never came."""
        self._take(tenant_id, 0, size, now)

    def spend(self, tenant_id: str, events: int, size: int, now: float, own: int = 0) -> None:
        """Count events and bytes of an append, or refuse it; `own` bytes are counted already."""
        self.check(tenant_id, now, own)
        self._take(tenant_id, events, size, now)

    def _take(self, tenant_id: str, events: int, size: int, now: float) -> None:
        if not self._counts:
            return
        for amount, bucket in zip((events, size), self._of(tenant_id, now), strict=True):
            if bucket is not None:
                bucket.take(amount)

    def _of(self, tenant_id: str, now: float) -> tuple[_Bucket | None, _Bucket | None]:
        """Return a tenant's buckets, of events and of bytes."""
        quota = self._own.get(tenant_id, self._general)
        if not quota.events_per_s and not quota.bytes_per_s:
            return None, None
        kept = self._buckets.get(tenant_id)
        if kept is None or kept[0] != quota:
            if len(self._buckets) >= _KEPT_MAX:
                self._buckets = {}
            kept = (
                quota,
                self._bucket(quota.events_per_s, now),
                self._bucket(quota.bytes_per_s, now),
            )
            self._buckets[tenant_id] = kept
        return kept[1:]

    def _bucket(self, rate: float, now: float) -> _Bucket | None:
        return _Bucket(rate * self._share, now) if rate else None


def _too_much(name: str, bound: float, wait: float) -> LimitExceeded:
    msg = f"the tenant's quota is used up ({name}: {bound:g}); wait {wait:.3f} s"
    details = {"limit": name, "bound": bound, "retry_after_s": round(wait, 3)}
    return LimitExceeded(msg, details=details, retryable=True)
