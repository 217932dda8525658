"""Does what the owner of the machine wants while a node runs: limits it, lets it rest, or ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from thinwire_common.logs import tell
from thinwire_common.within import Within
from thinwire_node.limits.keeper import LOOK_EVERY_S, LimitsKeeper, LimitsSource
from thinwire_node.limits.limits import Limits
from thinwire_node.limits.throttle import Throttle
from thinwire_node.part import Part, Session
from thinwire_node.runtime import Clocks, together
from thinwire_node.session.record import Record
from thinwire_proto.limits import REST_AFTER_S

log = logging.getLogger("thinwire.node")


class Resting(Protocol):
    """A node, as far as a rest is concerned. doing: what it does, in words."""

    doing: str

    @property
    def part(self) -> Part | None: ...


class Owner:
    """source: of the limits; None: the owner has set none, and never rests the node."""

    def __init__(self, source: LimitsSource | None, record: Record) -> None:
        self._source = source
        self._record = record
        self._keeper: LimitsKeeper | None = None
        self.throttle: Throttle | None = None
        """Paces the connections. None until `open`, or without a source."""
        self._stop = asyncio.Event()
        self._session: Session | None = None
        self._breaks = asyncio.Event()
        self._told = ""
        self._has_kept = False
        self.is_ending = False
        """Whether the owner has ordered the node to stop."""
        self.has_interrupted = False
        """Whether the owner has ended the session that ends now, or the last one."""

    def open(self, state_dir: Path, clocks: Clocks) -> None:
        """Read the limits. This process holds the state directory. Raises ConfigError."""
        if self._source is not None:
            clock = clocks.time_of_day
            self._keeper = LimitsKeeper(self._source, state_dir, clock, self._take, self._obey)
            self.throttle = Throttle(self._keeper.limits, self._keeper.budget, clock)
            self._record.upload_max = self._keeper.limits.max_upload

    @contextlib.asynccontextmanager
    async def followed(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Follow what the owner wants meanwhile. `stop` is set if that is the end, or if it fails, which is raised."""
        if self._keeper is None:
            yield
            return
        self._stop = stop
        following = asyncio.ensure_future(self._keeper.run())
        following.add_done_callback(lambda ended: stop.set())
        try:
            yield
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            self._keeper.budget.close()

    def begins(self, session: Session) -> None:
        self._session, self.has_interrupted, self._has_kept = session, False, False
        if self.is_ending:
            session.finish()

    def is_over(self) -> None:
        """The session has returned, or is lost."""
        self._session = None

    async def ended(self, part: Part) -> None:
        """The session has returned, and the coordinator is told next. Save what shall last if the owner wanted the
        end."""
        self.is_over()
        if self.has_interrupted or self.is_ending:
            await part.rest()
            self._has_kept = True

    async def wants_break(self, stop: asyncio.Event | None = None) -> None:
        """Wait until the session has to end, for a rest or because its connections must be made anew, or for `stop`."""
        rests = self._keeper.rests if self._keeper is not None else None
        events = [event for event in (self._breaks, rests, stop) if event is not None]
        while not any(event.is_set() for event in events):
            async with together(*(event.wait() for event in events)) as waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def interrupt(self, running: asyncio.Future[None], part: Part | None) -> None:
        """End a running session in order. Raises what has ended it."""
        self._breaks.clear()
        self.has_interrupted = True
        rest = self._keeper.resting if self._keeper is not None else None
        self._record.resting = rest.words if rest is not None else ""
        if self._session is None:
            running.cancel()  # while it joins or fetches, which goes on from there
        else:
            self._session.rest()
            await asyncio.wait({running}, timeout=REST_AFTER_S)
            if not running.done() and part is not None:
                part.interrupt()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def rest(self, node: Resting, stop: asyncio.Event) -> bool:
        """Wait while the owner lets the node rest, or until `stop` is set. Returns whether there was a rest."""
        if self._keeper is None or self._keeper.resting is None:
            self._record.resting = ""  # the rest that has ended the session is over already
            return False
        if self.throttle is not None:
            self.throttle.cut()
        if node.part is not None and not self._has_kept:  # no session has ended in order
            await node.part.rest()
        while (rest := self._keeper.resting) is not None and not stop.is_set():
            node.doing = self._record.resting = rest.words
            if rest.words != self._told:
                tell(log, logging.INFO, "node.waiting", rest.words, reason=rest.words)
            self._told = rest.words
            with contextlib.suppress(asyncio.TimeoutError):
                async with Within(LOOK_EVERY_S):
                    await stop.wait()
        self._record.resting = self._told = ""
        self._has_kept = False
        return True

    def _take(self, limits: Limits) -> None:
        self._record.lent.share = limits.max_compute / 100
        self._record.upload_max = limits.max_upload
        if self.throttle is not None:
            was_needed = self.throttle.is_needed
            self.throttle.take(limits)
            if self.throttle.is_needed != was_needed:
                self._breaks.set()  # the connections lead through the relay, or past it

    def _obey(self, stop: str) -> None:
        """The owner orders the node to stop, `now` or `after-round`."""
        self.is_ending = True
        if stop == "now" or self._session is None:
            self._stop.set()
        else:
            self._session.finish()
