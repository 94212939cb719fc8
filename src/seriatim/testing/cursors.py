"""E5: cursors of consumers, which only advance, and the leases that fence them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from seriatim.core.errors import InvalidArgument, LeaseLost, SeriatimError
from seriatim.factory import Log
from seriatim.log.cursors import make_cursor
from seriatim.store.port import Cursor
from seriatim.testing.factories import events, run_concurrently, wait_for


def cursor(log: Log, position: int, name: str = "p", query: str = "") -> Cursor:
    """Return a cursor of a projection."""
    return make_cursor(log.store, log.tenant_id, "projection", name, position, query)


class CursorContract:
    """E5: cursors only advance, and leases fence them."""

    def test_stored_cursor_has_position_identity_and_time(self, log: Log) -> None:
        """E5: a stored cursor has its position, the identity of its log and a time."""
        log.append(events(2))
        log.store.put_cursor(cursor(log, 2), lease=None, reset=False)

        stored = log.store.cursor(log.tenant_id, "projection", "p")

        assert stored is not None
        assert (stored.position, stored.name, stored.purpose) == (2, "p", "projection")
        assert (stored.log_id, stored.epoch) == (log.identity().log_id, log.identity().epoch)
        assert stored.last_event_id == [record.event_id for record in log.read()][1]
        assert stored.updated_at.endswith("Z")

    def test_first_created_cursor_is_kept(self, log: Log) -> None:
        """E5: when two consumers create the same cursor, the second one finds the first's."""
        log.append(events(3))

        first = log.store.add_cursor(cursor(log, 1))
        second = log.store.add_cursor(cursor(log, 3))

        assert (first.position, second.position) == (1, 1)

    def test_cursors_are_listed_by_name(self, log: Log) -> None:
        """E5: cursors are listed for one tenant and purpose, in the order of their names."""
        for name in ("b", "a", "B"):
            log.store.put_cursor(cursor(log, 0, name), lease=None, reset=False)
        log.subscribe("c")
        other = log.for_tenant("other")
        other.store.put_cursor(cursor(other, 0, "d"), lease=None, reset=False)

        listed = log.store.cursors(log.tenant_id, "projection")

        assert [cursor_.name for cursor_ in listed] == ["B", "a", "b"]
        assert log.store.cursor(log.tenant_id, "projection", "d") is None

    def test_cursors_only_advance(self, log: Log) -> None:
        """E5: a cursor moves backwards only by a reset; the same position is accepted."""
        log.append(events(3))
        log.store.put_cursor(cursor(log, 2), lease=None, reset=False)

        log.store.put_cursor(cursor(log, 2), lease=None, reset=False)
        with pytest.raises(InvalidArgument):
            log.store.put_cursor(cursor(log, 1), lease=None, reset=False)
        log.store.put_cursor(cursor(log, 3), lease=None, reset=False)
        log.store.put_cursor(cursor(log, 0), lease=None, reset=True)
        stored = log.store.cursor(log.tenant_id, "projection", "p")
        assert stored is not None
        assert (stored.position, stored.last_event_id) == (0, "")

    def test_a_cursor_keeps_its_query(self, log: Log) -> None:
        """E5: another query under a known name is a conflict, unless it is a reset."""
        log.store.put_cursor(cursor(log, 0, query="a"), lease=None, reset=False)

        with pytest.raises(SeriatimError) as caught:
            log.store.put_cursor(cursor(log, 0, query="b"), lease=None, reset=False)
        assert caught.value.code == "conflict"
        log.store.put_cursor(cursor(log, 0, query="b"), lease=None, reset=True)

    def test_a_lease_has_one_owner(self, log: Log) -> None:
        """E5: a held lease cannot be claimed; after its release the next token is higher."""
        claim = log.store.claim_lease
        lease = claim("default", "job", "one", 60.0)
        assert lease is not None

        assert claim("default", "job", "two", 60.0) is None
        assert claim("other", "job", "two", 60.0) is not None
        assert claim("default", "job-2", "two", 60.0) is not None
        assert log.store.renew_lease(lease, 60.0)
        log.store.release_lease(lease)
        taken = claim("default", "job", "two", 60.0)
        assert taken is not None
        assert taken.token > lease.token
        assert not log.store.renew_lease(lease, 60.0)
        log.store.release_lease(lease)
        assert claim("default", "job", "three", 60.0) is None

    def test_new_claim_of_an_owner_voids_its_old_token(self, log: Log) -> None:
        """E5: an owner that claims again gets a new token, and its old one is void."""
        first = log.store.claim_lease("default", "job", "one", 60.0)
        second = log.store.claim_lease("default", "job", "one", 60.0)

        assert first is not None
        assert second is not None
        assert second.token > first.token
        assert not log.store.renew_lease(first, 60.0)

    def test_expired_lease_can_be_claimed(self, log: Log) -> None:
        """E5: an expired lease can be claimed; until then its owner can still renew it."""
        lease = log.store.claim_lease("default", "job", "one", 0.01)
        assert lease is not None
        taken = wait_for(lambda: log.store.claim_lease("default", "job", "two", 60.0))

        assert taken.token > lease.token
        assert not log.store.renew_lease(lease, 60.0)

    def test_a_lost_lease_moves_no_cursor(self, log: Log) -> None:
        """E5: a cursor is fenced: only the latest claim moves it."""
        log.append(events(2))
        old = log.store.claim_lease("default", "job", "one", 60.0)
        assert old is not None
        log.store.put_cursor(cursor(log, 1), lease=old, reset=False)
        new = log.store.claim_lease("default", "job", "one", 60.0)
        assert new is not None

        with pytest.raises(LeaseLost):
            log.store.put_cursor(cursor(log, 2), lease=old, reset=False)
        stored = log.store.cursor(log.tenant_id, "projection", "p")
        assert stored is not None
        assert stored.position == 1
        log.store.put_cursor(cursor(log, 2), lease=new, reset=False)

    def test_concurrent_claims_have_one_owner(self, log: Log) -> None:
        """E5: concurrent claims have one owner, and tokens only rise."""
        tokens: list[int] = []
        for _ in range(4):
            leases = run_concurrently(
                lambda n: log.store.claim_lease("default", "job", f"owner-{n}", 60.0), 8
            )
            won = [lease for lease in leases if lease is not None]
            assert len(won) == 1
            assert not isinstance(won[0], SeriatimError)
            tokens.append(won[0].token)
            log.store.release_lease(won[0])

        assert all(before < after for before, after in pairwise(tokens))
