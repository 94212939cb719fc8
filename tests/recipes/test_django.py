"""The Django recipe: gunicorn with a runner process, or with a follower in each worker."""

from __future__ import annotations

import pytest

from seriatim import Log
from tests.recipes.programs import Program, check_orders, run_django_runner, serve_django

pytestmark = pytest.mark.slow
CONFIGURATION = ("--config", "gunicorn_conf.py")


def wait_follows(runner: Program) -> None:
    """Wait until a runner process has started its follower."""
    runner.wait_printed("following the log")


def test_a_client_reads_its_own_write(url: str, log: Log) -> None:
    """I6, I10: web workers append and wait; the runner process applies the events."""
    with serve_django(url, "--workers=2") as server, run_django_runner(url) as runner:
        server.wait_listening()
        wait_follows(runner)
        status, placed = server.call("PUT", "/orders/1", {"customer": "Ada", "cents": 500})
        assert status == 200
        row = server.read_own_write("1", placed["position"])
        assert (row["customer"], row["cents"]) == ("Ada", 500)
        server.wait_confirmed("1")

        assert server.call("PUT", "/orders/1", {"customer": "Ada", "cents": 500}) == (200, placed)
        status, problem = server.call("PUT", "/orders/1", {"customer": "Eve", "cents": 1})
        assert (status, problem["code"]) == (409, "idempotency_conflict")
        status, problem = server.call("GET", "/orders/1?after=1000")
        assert (status, problem["code"]) == (400, "invalid_argument")
        assert server.call("GET", "/orders/2")[0] == 404
        runner.stop()
        server.stop()
    check_orders(log, "1")


def test_the_health_of_the_read_model(url: str, log: Log) -> None:
    """I7: any web worker reports that nothing follows, that it works, and that it failed."""
    with serve_django(url) as server:
        server.wait_listening()
        assert server.call("GET", "/health")[0] == 503
        position = server.place("1")
        with run_django_runner(url) as runner:
            server.read_own_write("1", position)
            server.wait_confirmed("1")
            assert server.call("GET", "/health") == (200, {"orders": {"status": "ready", "lag": 0}})
            log.projections.pause("orders", reason="a test")
            assert server.call("GET", "/health")[0] == 503
            log.projections.resume("orders", reason="a test")
            assert server.call("GET", "/health")[0] == 200
            runner.stop()
        server.stop()
    assert not log.projections.find("orders").owner  # so the next runner works at once


def test_a_killed_runner_is_replaced_by_the_other(url: str, log: Log) -> None:
    """I8, F5: of two runner processes one works; after kill -9 the other takes over."""
    with serve_django(url) as server, run_django_runner(url) as first:
        server.wait_listening().read_own_write("1", server.place("1"))
        with run_django_runner(url) as second:
            wait_follows(second)
            first.kill9()
            server.read_own_write("2", server.place("2"))
            server.wait_confirmed("1")
            server.wait_confirmed("2")
            second.stop()
        server.stop()
    check_orders(log, "1", "2")


def test_workers_that_follow_are_killed_in_turn(url: str, log: Log) -> None:
    """I8: with a follower in each forked worker, another one takes over after kill -9."""
    with serve_django(url, *CONFIGURATION) as server:
        server.wait_listening().read_own_write("0", server.place("0"))
        for order_id in ("1", "2"):
            server.kill_oldest_worker()
            server.read_own_write(order_id, server.place(order_id))
        for order_id in ("0", "1", "2"):
            server.wait_confirmed(order_id)
        server.stop()
    assert not log.projections.find("orders").owner
    check_orders(log, "0", "1", "2")
