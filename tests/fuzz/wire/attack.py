"""Feeds a coordinator with inputs over several connections at once."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz import corpus
from fuzz.wire import strays
from fuzz.wire.calls import Call, right
from fuzz.wire.connection import Answer, Connection
from fuzz.wire.inputs import Inputs
from fuzz.wire.session import ANSWER_S, NotJoined, Session
from fuzz.wire.tally import ACCEPTED, Tally, shown

CONNECTIONS = 8
WORKERS_EACH = 22
"""A coordinator takes 32 streams on a connection, and a cancelled one counts for a while."""
JOINERS = 3
JOINS_EACH = 20
STRAYS = 4
LONG_S = 0.1
"""Calls without an end of their own are cancelled after this time."""


@dataclass
class Place:
    """The place where the coordinator listens. token: of an invite. context, http_context: for TLS, unverified."""

    host: str
    port: int
    http_port: int
    token: bytes
    context: ssl.SSLContext
    http_context: ssl.SSLContext

    async def connect(self, rng: Random | None = None) -> Connection:
        """rng: chooses an address of loopback to come from, because calls are counted by address."""
        own = f"127.{rng.randrange(1, 255)}.{rng.randrange(255)}.{rng.randrange(1, 255)}" if rng is not None else None
        return await Connection.open(self.host, self.port, self.context, own)


class Attack:
    """inputs: makes the inputs. joining: sessions whose keys are used to join again and again.

    until: a time.monotonic(). inputs_max: of all kinds. keep_in: a folder for messages with new answers."""

    def __init__(
        self,
        place: Place,
        inputs: Inputs,
        joining: list[Session],
        *,
        until: float,
        inputs_max: int,
        keep_in: Path | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        self.tally = Tally()
        self._connections = connections
        self._place = place
        self._inputs = inputs
        self._joining = joining
        self._until = until
        self._inputs_max = inputs_max
        self._keep_in = keep_in

    async def run(self) -> Tally:
        workers = [self._calls() for _ in range(self._connections)]
        workers += [self._joins(session) for session in self._joining[:JOINERS]]
        rng = self._inputs.rng
        workers += [self._strays(strays.of_grpc, self._place.port, Random(rng.random())) for _ in range(STRAYS)]
        workers += [self._strays(strays.of_http, self._place.http_port, Random(rng.random())) for _ in range(STRAYS)]
        await asyncio.gather(*workers)
        return self.tally

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until and self.tally.inputs < self._inputs_max and self._alive

    _alive = True

    async def _calls(self) -> None:
        """Keep WORKERS_EACH calls in flight on one connection. A connection that is used up is replaced."""
        while self._goes_on:
            connection = await self._open()
            if connection is None:
                return
            await asyncio.gather(*(self._work(connection) for _ in range(WORKERS_EACH)))
            connection.close()

    async def _open(self) -> Connection | None:
        try:
            return await self._place.connect(self._inputs.rng)
        except OSError as error:
            self._alive = False
            self.tally.find("connection", f"the coordinator cannot be reached: {error}")
            return None

    async def _work(self, connection: Connection) -> None:
        while self._goes_on and connection.usable:
            call, method, message = self._inputs.make()
            await self._send(connection, call, method, message)

    async def _send(self, connection: Connection, call: Call, method: str, message: bytes) -> Answer:
        stream, future = connection.call(call.headers, call.body, ends=call.ends)
        await asyncio.wait({future}, timeout=LONG_S if call.long else ANSWER_S)
        if not future.done():
            connection.cancel(stream)
            if not call.long:
                self.tally.find(f"{call.label}: no answer", f"in {ANSWER_S:g} s: {shown(message)}")
        answer = await future
        self.tally.answered(call.label, answer, message)
        if self._inputs.learn(method, message, answer) and self._keep_in is not None:
            self.tally.kept += corpus.keep(f"wire {method}", message, self._keep_in)
        return answer

    async def _joins(self, session: Session) -> None:
        """Join with a right proof, and all else damaged; a few times from each address, since failures are counted."""
        connection, joins = await self._open(), 0
        while connection is not None and self._goes_on:
            if not connection.usable:
                connection.close()
                connection = await self._open()
                continue
            try:
                request = await session.join_request(connection)
            except NotJoined as error:
                self.tally.counted("Hello", error.reason)
                continue
            except asyncio.TimeoutError:
                self.tally.find("Hello: no answer", f"in {ANSWER_S:g} s")
                return
            self.tally.counted("Hello", ACCEPTED)
            message = self._inputs.damaged_join(request)
            await self._send(connection, right("Join", message, scheme=session.scheme), "Join", message)
            joins += 1
            if joins % JOINS_EACH == 0:
                connection.close()
                connection = await self._open()
        if connection is not None:
            connection.close()

    async def _strays(self, make: Callable[[Random], strays.Stray], port: int, rng: Random) -> None:
        """Send what is no call, on connections of its own."""
        context = self._place.context if make is strays.of_grpc else self._place.http_context
        while self._goes_on:
            stray = make(rng)
            outcome = await strays.send(self._place.host, port, context if stray.in_tls else None, stray)
            self.tally.counted(stray.label, outcome.split(":", maxsplit=1)[0])
            self.tally.check(stray.label, outcome, stray.data)
