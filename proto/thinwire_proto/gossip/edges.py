"""The edges of a member: begins and ends them, with all that is kept of each. Pure."""

from __future__ import annotations

from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.chain import MixChain
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.gossip.iteration import IterationMachine, Mix, joined
from thinwire_proto.gossip.peer import Peer, first_sequence

FIRST_TOPOLOGY = 1


class Edges:
    """machine, copies, chain: the member's. first: float32 [parameters], what all had in the beginning, with which the
    edges of the first topology begin. peers: by number, those without an edge too."""

    def __init__(self, machine: IterationMachine, copies: Copies, chain: MixChain, first: Tensor) -> None:
        self.peers: dict[int, Peer] = {}
        self._machine = machine
        self._copies = copies
        self._chain = chain
        self._first = first
        self._unreadable: dict[int, str] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of peers with an edge, ascending."""
        return tuple(sorted(self._copies.edges))

    def peer(self, number: int) -> Peer:
        return self.peers.setdefault(number, Peer(number))

    def joined(self) -> list[Peer]:
        """Peers with an edge."""
        return [self.peers[number] for number in self.numbers]

    def join(self, peer: Peer, since: int) -> None:
        """Begin an edge with this topology."""
        peer.since = since
        self._copies.join(peer.number, self._first if since == FIRST_TOPOLOGY else None, base=first_sequence(since))

    def stays(self, peer: Peer, since: int = 0) -> bool:
        """Whether an edge that has ended stays for a while. since: the topology with which it begins anew, if any."""
        is_settled = peer.number not in self._machine.unfinished and self._copies.edges[peer.number].is_confirmed
        # a message of the new edge shows that the peer has done with the older one
        is_settled |= bool(peer.unread_of(since))
        return not is_settled and peer.lingers(self._machine.iteration, self.peers.values())

    def settle(self, peer: Peer) -> Mix | None:
        """The peer has begun an edge anew, so it has done with the older one: it sends no more for its turns."""
        if peer.arrived:
            return self._machine.part(peer.number)  # some of its messages are not told to the machine yet
        return self._machine.void(peer.number)

    def tell(self, peer: Peer) -> Mix | None:
        """Tell the machine of the turns of messages that were read, as far as it takes them."""
        mix = None
        while peer.arrived and self._machine.accepts(peer.number):
            turn, is_passed = peer.arrived.popleft()
            if is_passed:
                mix = joined(mix, self._machine.passed(peer.number, turn.topology, turn.iteration))
            else:
                mix = joined(mix, self._machine.received(turn))
        return mix

    def end(self, peer: Peer) -> None:
        peer.end()
        self._machine.forget(peer.number)
        self._copies.leave(peer.number)
        self._chain.forget(peer.number)

    def refuse(self, peer: Peer, error: PayloadError) -> None:
        """End an edge because a message cannot be read, until a topology begins it anew."""
        since = peer.since if peer.renewed is None else peer.renewed
        self.end(peer)
        peer.unread.clear()
        peer.ended = since
        self._unreadable[peer.number] = str(error)

    def unreadable(self) -> dict[int, str]:
        """The peers that were refused since the last call, and why."""
        found, self._unreadable = self._unreadable, {}
        return found
