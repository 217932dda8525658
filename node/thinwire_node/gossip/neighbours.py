"""The peers of a node: where each is reached, and what is on its way from its line to the compute thread.

Lines deliver events on the event loop, as many and as fast as a peer likes. The member is of the compute thread. So at
most one confirmation and one change of presence of each peer are under way, and the newest one that comes meanwhile
follows. Messages are bounded by UNACKNOWLEDGED_MAX.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thinwire_common.logs import tell
from thinwire_common.traffic import Traffic
from thinwire_node.gossip.port import Lines, MakeLines, PeerPlace
from thinwire_node.gossip.work import GossipWork, Sending
from thinwire_node.report import Edge, short_name
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.iteration import Mix
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.reports import SeenEdge, SeenLines
from thinwire_proto.gossip.sender import UNACKNOWLEDGED_MAX


class Errands:
    """What a node does beside its iterations, for its lines: each errand is short, or ends with its line.

    stop_iterations: stops the iterations, for a reason in words. They cannot go on without what an errand has failed
    to do."""

    def __init__(self, stop_iterations: Callable[[str], None]) -> None:
        self._stop_iterations = stop_iterations
        self._under_way: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._failed = asyncio.Event()

    def __len__(self) -> int:
        """Errands that are under way."""
        return len(self._under_way)

    def begin(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._under_way.add(task)
        self.watch(task)

    def watch(self, task: asyncio.Task[None]) -> None:
        """Take what this task raises as if an errand had."""
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._failed.set()
            self._stop_iterations(str(error))

    async def failure(self) -> None:
        """Raise what an errand or the watched task has raised, once one has."""
        await self._failed.wait()
        self.check()

    def check(self) -> None:
        """Raise what an errand or the watched task has raised, if one has by now."""
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Stop what is under way."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


log = logging.getLogger("thinwire.node")

NAMED_MAX = 4


@dataclass
class Peer:
    """One peer. place: where it is reached; None: not known, or there is no edge any more. is_lost: there was a line.
    heard: the iteration of its newest message. untaken: its messages on their way to the compute thread.

    confirmed: the newest message that it has confirmed, while a confirmation is under way; else None. moves: whether a
    change of its presence is under way, after which `then` follows unless that is None."""

    place: PeerPlace | None = None
    is_lost: bool = False
    heard: int | None = None
    untaken: int = 0
    confirmed: int | None = None
    moves: bool = False
    then: bool | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self.untaken == 0 and self.confirmed is None and not self.moves


class Neighbours:
    """The peers by member number, and the lines to them, whose `Listener` this is.

    note: takes the decision to mix that follows from an event. missed: is told of a peer that is left out."""

    def __init__(
        self,
        work: GossipWork,
        make_lines: MakeLines,
        errands: Errands,
        note: Callable[[Mix | None], None],
        missed: Callable[[int], None],
    ) -> None:
        self._work = work
        self._errands = errands
        self._note = note
        self._missed = missed
        self._peers: dict[int, Peer] = {}
        self.topology = 0
        """The newest topology whose places are known."""
        self.lines: Lines = make_lines(self)

    # places

    @property
    def places(self) -> dict[int, PeerPlace]:
        """Where the peers are reached that are known."""
        return {number: peer.place for number, peer in self._peers.items() if peer.place is not None}

    @property
    def lost(self) -> set[int]:
        """Known peers to which there was a line."""
        return {number for number, peer in self._peers.items() if peer.is_lost and peer.place is not None}

    def _peer(self, number: int) -> Peer:
        return self._peers.setdefault(number, Peer())

    def assign(self, topology: int, since: Iterable[int], places: Mapping[int, PeerPlace]) -> None:
        """Take a new topology with these peers, and places that were not known."""
        self._retire(places)
        for number, place in places.items():
            self._peer(number).place = place
        self.topology = max(self.topology, topology)
        self.open()
        if not set(since) & set(self._work.view.peers) <= self.places.keys():
            self.topology = 0  # to a node without a topology the coordinator sends all places

    def _retire(self, places: Mapping[int, PeerPlace]) -> None:
        """Give up the older numbers of peers that have begun anew: nobody answers under them."""
        numbers = {place.key: number for number, place in places.items()}
        for number, place in self.places.items():
            if numbers.get(place.key, number) != number:
                self._peers[number].place = None
                self.absent(number, "it has begun anew, as another member")

    def open(self) -> None:
        """Open the lines of all edges, and close those of edges that have ended."""
        for number, peer in list(self._peers.items()):
            if number not in self._work.view.peers:
                peer.place = None
            if peer.place is None:
                peer.is_lost, peer.heard = False, None
                if peer.is_idle:
                    del self._peers[number]
        if self.topology:
            self.lines.assign(self.places)

    @property
    def have_ended_edges(self) -> bool:
        """Whether a known peer has no edge any more."""
        return not self.places.keys() <= set(self._work.view.peers)

    # events of the lines

    def received(self, peer: int, message: Message) -> None:
        of = self._peer(peer)
        if of.untaken >= UNACKNOWLEDGED_MAX:
            raise PayloadError(f"{UNACKNOWLEDGED_MAX} of its messages wait already")
        of.untaken += 1
        of.heard = max(message.iteration, of.heard or 0)
        self._errands.begin(self._received(peer, of, self._work.event(self._work.member.received, peer, message)))

    async def _received(self, peer: int, of: Peer, taking: asyncio.Future[Mix | None]) -> None:
        try:
            self._note(await taking)
        except PayloadError as error:
            self.leave_out(peer, str(error))
        finally:
            of.untaken -= 1

    def confirmed(self, peer: int, sequence: int) -> None:
        of = self._peer(peer)
        is_under_way = of.confirmed is not None
        of.confirmed = max(sequence, of.confirmed or 0)
        if not is_under_way:
            self._errands.begin(self._confirmed(peer, of))

    async def _confirmed(self, peer: int, of: Peer) -> None:
        """Take the newest confirmation, and those that come meanwhile."""
        taken = -1
        try:
            while of.confirmed is not None and of.confirmed > taken:
                newest = of.confirmed
                await self._work.event(self._work.member.acknowledged, peer, newest)
                taken = newest
        except PayloadError as error:
            self.leave_out(peer, str(error))
        finally:
            of.confirmed = None

    def present(self, peer: int) -> None:
        self._peer(peer).is_lost = False
        self._move(peer, is_present=True)

    def absent(self, peer: int, why: str) -> None:
        self._peer(peer).is_lost = True
        self._move(peer, is_present=False)

    def _move(self, peer: int, *, is_present: bool) -> None:
        of = self._peer(peer)
        if of.moves:
            of.then = is_present
        else:
            of.moves = True
            self._errands.begin(self._moved(peer, of, self._queue(peer, is_present=is_present)))

    def _queue(self, peer: int, *, is_present: bool) -> Awaitable[list[Message] | Mix | None]:
        if is_present:
            return self._work.event(self._work.present, peer)
        return self._work.event(self._work.member.absent, peer)

    async def _moved(self, peer: int, of: Peer, taking: Awaitable[list[Message] | Mix | None]) -> None:
        """Follow a change, and the newest of those that come meanwhile."""
        try:
            while True:
                found = await taking
                then, of.then = of.then, None
                if then is not None:
                    taking = self._queue(peer, is_present=then)
                if not isinstance(found, list):
                    self._note(found)
                elif then is None:  # otherwise the line was lost meanwhile, with all that waited for it
                    for message in found:
                        self.lines.send(peer, message)
                if then is None:
                    return
        finally:
            of.moves = False

    def received_from(self, peer: int) -> int:
        return self._work.saved.confirmed.get(peer, 0)

    def leave_out(self, peer: int, reason: str) -> None:
        """Go on without a peer whose messages cannot be used."""
        place = self._peer(peer).place
        node_id = place.key.node_id if place is not None else None
        text = f"node {self.names([peer])} is left out: {reason}"
        tell(log, logging.WARNING, "node.peer_left_out", text, member=peer, node_id=node_id, reason=reason)
        self._missed(peer)
        self.absent(peer, reason)

    # messages to peers

    def send(self, sending: Sending) -> None:
        for peer, message in sending:
            self.lines.send(peer, message)

    def confirm(self, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Tell the peers whose messages the newest entry of the journal has. By peer, its last message in the entry
        before, and in this one."""
        for peer, sequence in after.items():
            if sequence > before.get(peer, 0):
                self.lines.confirm(peer)

    # for people

    def names(self, peers: Iterable[int]) -> str:
        """The first digits of their ids, as in `1a2b3c4d, 5e6f7a8b and 3 more`; empty without peers. A peer whose id is
        not known has its member number."""
        known, places = sorted(peers), self.places
        named = [
            short_name(places[peer].key.node_id) if peer in places else f"member {peer}" for peer in known[:NAMED_MAX]
        ]
        more = len(known) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")

    def edges(self) -> list[Edge]:
        """The lines to all known peers."""
        direct, present = set(self.lines.direct), set(self.lines.present)
        return [
            Edge(
                number,
                "direct" if number in direct else "relay" if number in present else "away",
                self._peers[number].heard,
                place.key.node_id,
            )
            for number, place in sorted(self.places.items())
        ]

    def seen_lines(self, traffic: Traffic) -> SeenLines:
        """The lines to all known peers, as reports to the coordinator have them."""
        edges = tuple(SeenEdge(edge.member, edge.line, edge.iteration) for edge in self.edges())
        return SeenLines(traffic.peers_sent["direct"], traffic.peers_received["direct"], edges)
