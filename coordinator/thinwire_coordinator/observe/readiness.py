"""Whether the coordinator lives, and whether nodes can join it.

The HTTP port opens before the ledger is replayed. So an orchestrator can tell a coordinator that needs time from one
that hangs: /livez answers 200 in both cases that are no fault, a replay and a shutdown; /readyz does not.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from thinwire_common.http import SAFETY
from thinwire_coordinator.swarm.view import SwarmView


class Readiness:
    """`text`: what happens before nodes can join. `swarm`: set when they can. `ending`: they cannot any more."""

    def __init__(self) -> None:
        self.text = "starting"
        self.swarm: SwarmView | None = None
        self.ending = False
        self.routes: list[BaseRoute] = [
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/healthz", self.readyz),  # its first name, which monitoring may know
        ]

    @property
    def failed(self) -> bool:
        return self.swarm is not None and self.swarm.failed

    @property
    def ready(self) -> bool:
        return self.swarm is not None and not (self.ending or self.failed)

    @property
    def state(self) -> str:
        """In words."""
        if self.swarm is None:
            return self.text
        if self.failed:
            return "a round could not be sealed"
        return "ending" if self.ending else self.swarm.condition

    async def livez(self, request: Request) -> Response:
        """200 as long as the event loop runs: the answer itself is the proof."""
        return JSONResponse({"ready": self.ready, "state": self.state}, headers=SAFETY)

    async def readyz(self, request: Request) -> Response:
        """200 while nodes can join, 503 before and after."""
        return JSONResponse({"ready": self.ready, "state": self.state}, 200 if self.ready else 503, SAFETY)
