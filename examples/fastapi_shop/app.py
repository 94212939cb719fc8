"""The web application: appends orders, reads them back, and reports its health.

Start it with `SHOP_LOG=sqlite:///shop.db uvicorn --app-dir examples fastapi_shop.app:app`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import seriatim
from fastapi_shop.shop import declare_confirmation, orders
from seriatim import IdempotencyConflict, Log, NewEvent, SeriatimError


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Open the log, and follow it until the server stops."""
    log = seriatim.open(os.environ["SHOP_LOG"])
    # Left in reverse order: effects and batches are finished, then the log is closed.
    async with (
        log.aio,
        log.aio.projections.follow(orders) as projections,
        log.aio.handlers.follow(declare_confirmation(log)) as handlers,
    ):
        yield {"log": log, "followers": [projections, handlers]}


async def get_log(request: Request) -> Log:
    """Return the log of this process."""
    log: Log = request.state.log
    return log


app = FastAPI(lifespan=lifespan)
OpenLog = Annotated[Log, Depends(get_log)]


class Order(BaseModel):
    """The body of a request that places an order."""

    customer: str
    cents: int


@app.put("/orders/{order_id}")
async def place_order(order_id: str, order: Order, log: OpenLog) -> dict[str, int]:
    """Store an order once, however often the request is sent; return its position."""
    placed = NewEvent("order.placed", order.model_dump(), stream=("order", order_id))
    receipt = await log.aio.append([placed], idempotency_key=f"place-{order_id}")
    return {"position": receipt.last_position}


@app.get("/orders/{order_id}")
async def get_order(order_id: str, log: OpenLog, after: int = 0) -> dict[str, Any]:
    """Return an order; `after` is the position of a write that the caller wants to see."""
    await log.aio.projections.wait_for("orders", after, timeout_s=2)
    row = await log.aio.projections.get_row(orders, order_id)
    if row is None:
        raise HTTPException(404, f"there is no order {order_id}")
    return row


@app.get("/health")
async def report_health(request: Request) -> JSONResponse:
    """Report each projection and handler of this process; 503 if one of them has failed."""
    runs = [run for follower in request.state.followers for run in follower.health()]
    body = {
        "pid": os.getpid(),
        "runs": {
            run.name: {"status": run.status, "lag": run.lag, "error": run.error} for run in runs
        },
    }
    return JSONResponse(body, 503 if any(run.status == "failed" for run in runs) else 200)


@app.exception_handler(SeriatimError)
async def report_error(_: Request, error: SeriatimError) -> JSONResponse:
    """Translate an error of the log: 503 if the same request may succeed later."""
    status = 409 if isinstance(error, IdempotencyConflict) else 503 if error.retryable else 400
    headers = {"Retry-After": "1"} if error.retryable else None
    return JSONResponse({"code": error.code, "message": error.message}, status, headers)
