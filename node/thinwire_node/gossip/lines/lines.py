"""All lines of one node: which peers are there, what waits for them, and what came from them.

A line is a direct connection where one of the two ends listens and the other reaches it, and goes through the
coordinator's relay otherwise. It has PEER_DIRECT_S to become direct before it uses the relay. While it does, this node
dials again and again, with a backoff.

A line is lost when the relay says so, or its stream ends. Then its peer is absent, and the line is begun again after a
pause, or as soon as the peer begins it. Both ends then send again what is not confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial

from thinwire_common.logs import tell
from thinwire_common.traffic import Traffic
from thinwire_common.within import Within
from thinwire_node.backoff import Backoff
from thinwire_node.gossip.lines.dialler import DialFailed, dial
from thinwire_node.gossip.lines.direct_lines import NOT_LISTENING, DirectLines, LineTimes, Opening, opening
from thinwire_node.gossip.lines.line import Framing, Line, Way
from thinwire_node.gossip.lines.stream import Stream, Wire
from thinwire_node.gossip.port import Listener, PeerPlace, Relay
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.message import Message
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import HEARTBEAT_S
from thinwire_proto.wire import service_pb2 as pb

log = logging.getLogger("thinwire.node")


class PeerLines:
    """The implementation of `thinwire_node.gossip.port.Lines`.

    key: this node's. bytes_max: of a body, see `peer_wire.body_bytes_max`. direct: None: all lines use the relay."""

    def __init__(
        self,
        key: SecretKey,
        contract_hash: bytes,
        bytes_max: int,
        listener: Listener,
        direct: DirectLines | None = None,
        traffic: Traffic | None = None,
        times: LineTimes | None = None,
    ) -> None:
        self._key = key
        self._contract_hash = contract_hash
        self._bytes_max = bytes_max
        self._listener = listener
        self._direct = direct or DirectLines()
        self._traffic = traffic or Traffic()
        self._times = times or LineTimes()
        self._random = random.Random()
        self._lines: dict[int, Line] = {}
        self._by_node: dict[bytes, int] = {}
        self._changed = asyncio.Event()  # there may be something for the relay
        self._relay_holds = False
        self._is_paced = self._direct.is_paced
        if self._direct.server is not None:
            self._direct.server.accept = self.accept

    @property
    def present(self) -> tuple[int, ...]:
        return tuple(sorted(peer for peer, line in self._lines.items() if line.is_present))

    @property
    def direct(self) -> tuple[int, ...]:
        return tuple(sorted(peer for peer, line in self._lines.items() if line.stream is not None))

    @property
    def listens_at(self) -> str:
        return self._direct.listens_at

    def assign(self, peers: Mapping[int, PeerPlace]) -> None:
        for peer in [peer for peer, line in self._lines.items() if peer not in peers or peers[peer].key != line.key]:
            self._lines.pop(peer).end()
        self._by_node = {bytes.fromhex(place.key.node_id): peer for peer, place in peers.items()}
        for peer, place in peers.items():
            line = self._lines.get(peer)
            if line is None:
                framings = {way: Framing(self._key, place.key, self._contract_hash, self._bytes_max) for way in Way}
                self._lines[peer] = line = Line(place.key, place.address, framings, self._pauses())
                self._open(peer, line)
            elif line.address != place.address:
                line.address = place.address
                if line.stream is None or line.dialling is None:
                    self._dial_anew(peer, line)
        self._changed.set()

    def send(self, peer: int, message: Message) -> None:
        if (line := self._lines.get(peer)) is not None:
            line.put(message)
            self._wake(line)

    def confirm(self, peer: int) -> None:
        if (line := self._lines.get(peer)) is not None:
            line.say_on(line.way)
            self._wake(line)

    async def run(self, relay: Relay) -> None:
        self._relay_holds, over = True, asyncio.Event()
        for line in self._lines.values():
            if line.on_relay and line.stream is None:
                line.begin_on(Way.RELAY)
        try:
            async with contextlib.aclosing(relay(self._outgoing(over))) as parcels:
                async for parcel in parcels:
                    self._take_relayed(parcel)
        finally:
            self._relay_holds = False
            over.set()
            for peer, line in self._lines.items():
                if line.stream is None:
                    self._lose(peer, line, "the relay is away")

    async def pace(self) -> None:
        """The owner may have limited the traffic, or freed it, since the last call. A node whose traffic is limited
        does not listen, and direct connections are made anew, within the limits."""
        if self._direct.is_paced == self._is_paced:
            return
        self._is_paced = self._direct.is_paced
        server = self._direct.server
        if self._is_paced and server is not None:
            log.warning(NOT_LISTENING)
            self._direct = replace(self._direct, server=None, listens_at="")
            await server.stop()
        peers = {peer: PeerPlace(line.key, line.address) for peer, line in self._lines.items()}
        for peer in peers:
            self._listener.absent(peer, "the owner has changed the limits on traffic")
        self.assign({})
        self.assign(peers)

    async def close(self) -> None:
        dialling = [line.dialling for line in self._lines.values() if line.dialling is not None]
        self.assign({})
        await asyncio.gather(*dialling, return_exceptions=True)
        if self._direct.server is not None:
            await self._direct.server.stop()

    # lines begin and end

    def _pauses(self) -> Backoff:
        return Backoff(None, self._random, self._times.first_s, self._times.max_s)

    def _opening(self, line: Line) -> Opening:
        own, dials = self._key.public.node_id, self._direct.refusal is not None
        return opening(own, line.key.node_id, line.address, listens=bool(self.listens_at), dials=dials)

    def _open(self, peer: int, line: Line) -> None:
        if self._opening(line) is Opening.RELAY:
            self._use_relay(peer, line)
            return
        line.timer = asyncio.get_running_loop().call_later(self._times.direct_s, self._use_relay, peer, line)
        self._dial_anew(peer, line)

    def _dial_anew(self, peer: int, line: Line) -> None:
        if line.dialling is not None:
            line.dialling.cancel()
            line.dialling = None
        if self._opening(line) is Opening.DIAL:
            line.dialling = asyncio.ensure_future(self._keep_dialling(peer, line))
            line.dialling.add_done_callback(_tell_failure)

    def _use_relay(self, peer: int, line: Line) -> None:
        """Begin a line on the relay, unless it is direct."""
        line.stop_timer()
        line.on_relay = True
        if line.stream is None and self._lines.get(peer) is line:
            line.begin_on(Way.RELAY)
            self._changed.set()

    def _find(self, peer: int, line: Line) -> None:
        line.find(asyncio.get_running_loop().time())
        self._listener.present(peer)

    def _find_begun(self, peer: int, line: Line) -> None:
        """Find a line that its peer has begun. Each time costs this node all messages that are not confirmed, so it is
        done at most once in `first_s`."""
        loop = asyncio.get_running_loop()
        pause_s = line.pause_before_find(loop.time(), self._times.first_s)
        if not pause_s:
            self._find(peer, line)
        elif line.finding is None:
            line.silence()
            line.finding = loop.call_later(pause_s, self._find, peer, line)

    def _lose(self, peer: int, line: Line, why: str) -> float:
        """Returns the pause before the line is begun again, in seconds."""
        loop = asyncio.get_running_loop()
        pause_s = line.lose(loop.time())
        if line.timer is None:
            line.timer = loop.call_later(pause_s, self._use_relay, peer, line)
        self._listener.absent(peer, why)
        return pause_s

    # direct

    async def _keep_dialling(self, peer: int, line: Line) -> None:
        """Have a direct connection, again and again."""
        loop, pauses = asyncio.get_running_loop(), self._pauses()
        while True:
            await line.without_stream.wait()
            began = loop.time()
            try:
                why = await self._dial(peer, line)
                text = f"the direct line to node {line.name} has ended: {why}"
            except DialFailed as error:
                why = str(error)
                text = (
                    f"no direct line to node {line.name} at {line.address}: {why}; meanwhile its messages use the relay"
                )
                if not line.on_relay:
                    self._use_relay(peer, line)
            if not line.is_relay_told:
                line.is_relay_told = True
                tell(log, logging.INFO, "node.peer_not_direct", text, member=peer, node_id=line.key.node_id, reason=why)
            if loop.time() - began >= self._times.max_s:
                pauses.reset()
            await asyncio.sleep(pauses.jittered_s())
            pauses.lengthen()

    async def _dial(self, peer: int, line: Line) -> str:
        assert self._direct.refusal is not None

        async def opened(wire: Wire, first: pb.Parcel) -> str:
            return await self._have(peer, line, wire, first)

        refusal, throttle = self._direct.refusal, self._direct.throttle
        return await dial(line.address, line.key, self._key, self._contract_hash, refusal, opened, throttle)

    async def accept(self, key: PublicKey, wire: Wire) -> bool:
        """Have a direct line that a peer has opened, until it ends. False: the key is no peer's, or the peer opens its
        line again and again, each time of which costs this node all messages that are not confirmed."""
        peer = self._by_node.get(bytes.fromhex(key.node_id))
        line = self._lines.get(peer) if peer is not None else None
        if peer is None or line is None or line.key != key:
            return False
        loop = asyncio.get_running_loop()
        pause_s = line.pause_before_next(loop.time(), self._times.first_s)
        if pause_s > self._times.direct_s:
            return False
        await asyncio.sleep(pause_s)
        if self._lines.get(peer) is not line:
            return False  # it ceased to be a peer meanwhile
        await self._have(peer, line, wire, None)
        return True

    async def _have(self, peer: int, line: Line, wire: Wire, first: pb.Parcel | None) -> str:
        """Have a direct connection until it ends. first: a parcel that has come already. Returns why it has ended."""
        stream = Stream(
            wire,
            lambda: line.next_parcel(Way.DIRECT, partial(self._listener.received_from, peer)),
            partial(self._take, peer, line, Way.DIRECT),
            self._times.accept_s,
            self._traffic,
        )
        line.connect(stream)
        self._find(peer, line)
        line.is_relay_told = False
        tell(
            log,
            logging.INFO,
            "node.peer_direct",
            f"a direct line to node {line.name}",
            member=peer,
            node_id=line.key.node_id,
        )
        why = "the connection was ended"
        try:
            if first is not None:
                self._take(peer, line, Way.DIRECT, first)
            why = await stream.run()
        except PayloadError as error:
            why = str(error)
        finally:
            if line.stream is stream:
                line.disconnect()
                self._fall_back(peer, line, why)
        return why

    def _fall_back(self, peer: int, line: Line, why: str) -> None:
        """Use the relay in place of the direct connection that has ended."""
        if self._lines.get(peer) is not line:
            return
        if not self._relay_holds:
            self._lose(peer, line, why)
            return
        self._use_relay(peer, line)
        self._find(peer, line)

    # the relay

    async def _outgoing(self, over: asyncio.Event) -> AsyncIterator[pb.Parcel]:
        """The parcels for the relay: one of each line in turn, so that a large message holds no other up.

        over: set once the relay has ended. gRPC may ask for another parcel even then, and would lose it."""
        yield pb.Parcel()  # the coordinator waits for a first one, and all lines may be direct
        while not over.is_set():
            self._changed.clear()
            sent = False
            for peer, line in list(self._lines.items()):
                if over.is_set():
                    return
                if self._lines.get(peer) is not line:
                    continue  # it ended meanwhile
                parcel = line.next_parcel(Way.RELAY, partial(self._listener.received_from, peer))
                if parcel is not None:
                    sent = True
                    parcel.node = bytes.fromhex(line.key.node_id)
                    self._traffic.peers_sent[Way.RELAY.value] += parcel.ByteSize()
                    yield parcel
            if not sent:
                with contextlib.suppress(asyncio.TimeoutError):
                    async with Within(HEARTBEAT_S):
                        await self._changed.wait()
                    continue
                yield pb.Parcel()  # keeps the stream alive

    def _take_relayed(self, parcel: pb.Parcel) -> None:
        self._traffic.peers_received[Way.RELAY.value] += parcel.ByteSize()
        peer = self._by_node.get(parcel.node)
        if peer is None:
            return  # not a peer, or not yet: it begins its line again after a while
        line = self._lines[peer]
        if parcel.gone:
            if line.stream is None:
                self._lose(peer, line, clean_text(parcel.gone))
            return
        now = asyncio.get_running_loop().time()
        if now < line.deaf_until:
            return
        try:
            self._take(peer, line, Way.RELAY, parcel)
        except PayloadError as error:
            line.deaf_until = now + self._refuse(peer, line, str(error))

    def _refuse(self, peer: int, line: Line, why: str) -> float:
        """Give up a line whose parcel cannot be read. Returns the seconds until parcels of the relay are read again:
        each one that cannot be is logged. This end begins the line again then."""
        if line.stream is not None:
            return self._times.max_s
        line.stop_timer()
        return self._lose(peer, line, why)

    # both

    def _wake(self, line: Line) -> None:
        if line.stream is None:
            self._changed.set()
        else:
            line.stream.wake()

    def _take(self, peer: int, line: Line, way: Way, parcel: pb.Parcel) -> None:
        """Take a parcel. Raises PayloadError for what the peer cannot have sent, and logs it."""
        framing = line.framings[way]
        try:
            if parcel.begins:
                framing.forget()
                line.say_on(way)  # it shows the peer that this end is there
                if way is Way.RELAY:
                    line.on_relay = True
                    self._changed.set()
                else:
                    self._wake(line)
            if way is line.way and ((parcel.begins and way is Way.RELAY) or not line.is_present):
                self._find_begun(peer, line)
            message = framing.read(parcel)
            if parcel.HasField("acknowledged"):
                self._listener.confirmed(peer, parcel.acknowledged)
            if message is not None:
                self._listener.received(peer, message)
        except PayloadError as error:
            text = f"node {line.name}: {error}; the line is begun again"
            log.warning("%s", text)
            raise


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log a fault of this program. The relay goes on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a line to a peer failed: %s", error, exc_info=error)
