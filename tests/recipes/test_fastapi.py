"""The FastAPI recipe under uvicorn: own writes, health, workers, kills and a clean stop."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim import Log, NewEvent
from tests.recipes.programs import WebServer, check_orders, serve_fastapi

pytestmark = pytest.mark.slow


def get_status(server: WebServer, run: str = "orders") -> str:
    """Return the status of a projection or handler in a server of one process."""
    _, health = server.call("GET", "/health")
    status: str = health["runs"][run]["status"]
    return status


def test_a_client_reads_its_own_write(url: str, log: Log) -> None:
    """I6, I10: a row is there once its position was waited for; a retry stores nothing."""
    with serve_fastapi(url) as server:
        server.wait_listening()
        status, placed = server.call("PUT", "/orders/1", {"customer": "Ada", "cents": 500})
        assert status == 200
        row = server.read_own_write("1", placed["position"])
        assert (row["customer"], row["cents"]) == ("Ada", 500)
        server.wait_confirmed("1")
        row = {"stream_id": "1", "customer": "Ada", "cents": 500, "status": "confirmed"}
        assert server.call("GET", "/orders/1") == (200, row)

        assert server.call("PUT", "/orders/1", {"customer": "Ada", "cents": 500}) == (200, placed)
        status, problem = server.call("PUT", "/orders/1", {"customer": "Eve", "cents": 1})
        assert (status, problem["code"]) == (409, "idempotency_conflict")
        status, problem = server.call("GET", "/orders/1?after=1000")
        assert (status, problem["code"]) == (400, "invalid_argument")
        assert server.call("GET", "/orders/2")[0] == 404
        server.wait_for(lambda: get_status(server) == "running", "running projection")
        server.stop()
    check_orders(log, "1")


def test_a_stop_releases_the_lease(url: str, log: Log) -> None:
    """I8: SIGTERM ends the server by itself, and the next one works at once."""
    with serve_fastapi(url) as server:
        server.wait_listening().place("1")
        server.wait_for(lambda: get_status(server) == "running", "running projection")
        assert log.projections.find("orders").owner
        server.stop()
        assert "Application shutdown complete" in server.output
    assert not log.projections.find("orders").owner


def test_a_failed_projection_is_reported(url: str, log: Log) -> None:
    """I7: the health of the application names the error; the event can be skipped meanwhile."""
    with serve_fastapi(url) as server:
        server.wait_listening()
        bad = log.append([NewEvent("order.damaged", stream=("order", "bad"))]).last_position
        status, health = server.wait_for(lambda: failed_health(server), "failure")
        assert status == 503
        assert f"stopped at position {bad}" in health["runs"]["orders"]["error"]

        log.projections.skip("orders", bad, reason="a test")
        server.wait_for(lambda: server.call("GET", "/health")[0] == 200, "recovery")
        server.read_own_write("2", server.place("2"))
        server.stop()


def failed_health(server: WebServer) -> Any:
    """Return the response of the health check if it is not 200."""
    response = server.call("GET", "/health")
    return response[0] != 200 and response


def test_a_killed_process_is_replaced_by_the_other(url: str, log: Log) -> None:
    """I8, F5: of two servers one follows; after kill -9 the other takes over, nothing is lost."""
    with serve_fastapi(url) as first, serve_fastapi(url) as second:
        first.wait_listening().read_own_write("1", first.place("1"))
        second.wait_listening()
        servers = [first, second]
        first.wait_for(
            lambda: sorted(map(get_status, servers)) == ["running", "waiting"], "one runner"
        )
        # The server that only waits reads its own write, too: the other one's follower applies it.
        servers.sort(key=get_status)
        runner, waiter = servers
        waiter.read_own_write("2", waiter.place("2"))

        runner.kill9()
        waiter.read_own_write("3", waiter.place("3"))
        waiter.wait_for(lambda: get_status(waiter) == "running", "takeover")
        for order_id in ("1", "2", "3"):
            waiter.wait_confirmed(order_id)
        waiter.stop()
    check_orders(log, "1", "2", "3")


def test_workers_of_one_server_are_killed_in_turn(url: str, log: Log) -> None:
    """I8: uvicorn replaces killed workers; clients that retry lose no order and repeat none."""
    with serve_fastapi(url, "--workers", "2") as server:
        server.wait_listening().read_own_write("0", server.place("0"))
        for order_id in ("1", "2"):
            server.kill_oldest_worker()  # so that every worker is killed once
            server.read_own_write(order_id, server.place(order_id))
        for order_id in ("0", "1", "2"):
            server.wait_confirmed(order_id)
        server.stop()
    check_orders(log, "0", "1", "2")
