"""Health endpoints: whether the coordinator is alive, and whether nodes can join it.

The HTTP port opens before the ledger is replayed, so an orchestrator can tell a busy coordinator from one that hangs:
/livez answers 200 also during a replay and during a shutdown; /readyz answers 503 in both cases.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_common.http import SAFETY
from thinwire_coordinator.hall.view import RunView


class Readiness:
    """State of the health endpoints.

    text: what the coordinator does before nodes can join. swarm: set once nodes can join. ending: set once the
    coordinator shuts down.
    """

    def __init__(self) -> None:
        self.text = "starting"
        self.swarm: RunView | None = None
        self.ending = False
        self.routes: list[BaseRoute] = [
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
        ]

    @property
    def failed(self) -> bool:
        return self.swarm is not None and self.swarm.failed

    @property
    def ready(self) -> bool:
        return self.swarm is not None and not (self.ending or self.failed)

    @property
    def state(self) -> str:
        """The state as text for people."""
        if self.swarm is None:
            return self.text
        if self.failed:
            return "a round could not be sealed"
        return "ending" if self.ending else self.swarm.condition

    async def livez(self, request: Request) -> Response:
        """Answer 200 as long as the event loop runs."""
        return JSONResponse({"ready": self.ready, "state": self.state}, headers=SAFETY)

    async def readyz(self, request: Request) -> Response:
        """Answer 200 while nodes can join, 503 before and after."""
        return JSONResponse({"ready": self.ready, "state": self.state}, 200 if self.ready else 503, SAFETY)
