"""A node of a gossip run: its iterations, the copies of its edges, and the chain of what it has mixed.

Pure: events and times in; messages to send, and decisions to mix, out.

The problem: a node may be killed at any moment, and then both ends of an edge must still hold equal copies. So all that
a member holds is saved (`state`) after `begin` has made the messages of an iteration, and before they leave. A member
that is restored has sent either the same messages or none. It has lost what it received since. So a member confirms
only what it has saved, and the peer sends the rest again.

Topologies: an assignment holds from its `start`. A node that has passed it takes the assignment with its next
iteration; turns that only one end has begun are void, as `iteration` says. An edge begins with the parameters that all
had in the beginning, if it is one of the first topology; otherwise each end sends a snapshot. It ends when a topology
is without it, and its last turns are mixed or its peer is absent. One that begins anew does so with the topology that
says so, once nothing of the old one is open; until then, messages of the new one wait. A node that a topology has left
out waits for the peers of its older edges as before: if it did not, it would run ahead, and they would skip to its
iteration. If they are far ahead of it, it takes the parameters of the first that it hears, as a new node does, and goes
on where that peer is. A peer whose message cannot be read has its edge ended, until a topology begins it anew
(`unreadable`).
"""

from __future__ import annotations

from dataclasses import replace

import msgpack
from torch import Tensor

from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment, Assignments
from thinwire_proto.gossip.bounds import MixBounds, radius_of
from thinwire_proto.gossip.chain import OWN, THEIRS, MixChain
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.gossip.edges import Edges
from thinwire_proto.gossip.iteration import AHEAD_MAX, IterationMachine, Mix, Turn, joined
from thinwire_proto.gossip.member_state import MemberSettings, MemberState
from thinwire_proto.gossip.message import SKIP, SNAPSHOT, Message
from thinwire_proto.gossip.mixing import late_factor
from thinwire_proto.gossip.peer import Peer, since_of


class Member:
    """One node. x: float32 [layout.parameters], mixed in place; at first what all begin with."""

    def __init__(self, layout: TileLayout, settings: MemberSettings, x: Tensor) -> None:
        self.x = x
        self._chain = MixChain()
        self._layout = layout
        self._settings = settings
        self._first = x.clone()
        self._machine = IterationMachine(settings.slack, settings.patience_s)
        radius = radius_of(settings.codec)
        self._bounds = MixBounds(layout, radius) if settings.is_bounded else None
        self._copies = Copies(layout, settings.gamma * late_factor(settings.slack), self._bounds)
        self._assignments = Assignments()
        self._edges = Edges(self._machine, self._copies, self._chain, self._first)
        self._adopted = -1

    @property
    def head(self) -> bytes:
        """Of the chain of what the node has mixed, 32 bytes."""
        return self._chain.head

    @property
    def iteration(self) -> int:
        """The iteration that the node computes, or waits for; -1 before the first."""
        return self._machine.iteration

    @property
    def topology(self) -> int:
        """The number of the newest topology that the member knows; 0 without one."""
        return self._assignments.topology

    @property
    def deadline(self) -> float | None:
        """See `IterationMachine.deadline`."""
        return self._machine.deadline

    @property
    def awaited(self) -> tuple[int, ...]:
        """See `IterationMachine.awaited`."""
        return self._machine.awaited

    @property
    def waits_to_adopt(self) -> bool:
        """Whether the node has to hear a peer before it begins."""
        newest = self._assignments.newest
        return newest is not None and newest.adopts and self.iteration < 0 and self._adopted < 0

    @property
    def peers(self) -> tuple[int, ...]:
        """Peers with which the member has an edge."""
        return self._edges.numbers

    # topologies

    def assign(self, assignment: Assignment) -> Mix | None:
        """Take an assignment. It holds from its start, or from the next iteration if that has passed."""
        if assignment.topology <= self.topology:
            return None
        self._assignments.add(assignment, self._machine.kept)
        mix = None
        for number, since in assignment.since.items():
            peer = self._edges.peer(number)
            if peer.since is not None and peer.since != since:
                peer.renewed = since
            elif peer.since is None and peer.ended != since:
                self._edges.join(peer, since)
        for peer in self._edges.joined():
            if peer.number not in assignment.since and assignment.start <= self.iteration:
                mix = joined(mix, self._machine.part(peer.number))  # it may be in the new topology already
            mix = joined(mix, self._read_on(peer))
        return mix

    def begin(self) -> list[tuple[int, Message]]:
        """Begin the next iteration. Returns the messages of its turns, by peer. Save the state before they leave.

        Raises LocalError if there is no assignment, or the node has to adopt first."""
        if not self.topology or self.waits_to_adopt:
            raise LocalError("this node has no peers yet")
        first = self._assignments.first_start if self.iteration < 0 else 0
        iteration = max(self._machine.next_iteration, self._adopted, first)
        assignment = self._assignments.at(iteration)
        late = set()
        for peer in self._edges.joined():
            since = peer.renewed
            if since is not None and assignment.topology >= since and not self._edges.stays(peer, since):
                self._edges.end(peer)
                self._edges.join(peer, since)
                late |= {peer.number} if since < assignment.topology or assignment.start < iteration else set()
        messages = []
        for peer in self._edges.joined():
            passes = peer.number in late or self._passes_turns(peer.number, assignment, iteration)
            try:
                message = self._message(peer, assignment, iteration, passes=passes)
            except PayloadError as error:  # of a message of the peer that had to be read before
                self._edges.refuse(peer, error)
                continue
            if message is not None:
                messages.append((peer.number, message))
                self._chain.note(Turn(*message.when, peer.number), OWN, message)
        exchanging = [peer for peer, message in messages if message.codec != SKIP]
        self._machine.begin(assignment.topology, iteration, exchanging)
        self._drop_old(assignment)
        for peer in self._edges.joined():
            self._read_on(peer)
        return messages

    # messages

    def received(self, peer: int, message: Message) -> Mix | None:
        """Take a message of a peer. One of an edge that has ended is dropped, and one that cannot be read ends its edge
        (`unreadable`)."""
        one = self._edges.peer(peer)
        if one.since is not None and message.topology < one.since <= self.topology:
            return None
        try:
            one.put(message)
        except PayloadError as error:
            self._edges.refuse(one, error)
            return self._machine.absent(peer)  # this node may have waited for it alone
        return self._read_on(one)

    def unreadable(self) -> dict[int, str]:
        """The peers whose edges have ended since the last call because of what they sent, and why. Call `absent`."""
        return self._edges.unreadable()

    def acknowledged(self, peer: int, sequence: int) -> None:
        """The peer has saved all messages up to this one, perhaps of an edge that has ended or not begun here. Raises
        PayloadError if it cannot have them."""
        if self._edges.peer(peer).since == since_of(sequence):
            self._copies.edges[peer].acknowledge(sequence)

    def received_from(self, peer: int) -> int:
        """The message of the peer up to which all are in the newest saved state."""
        return self._edges.peer(peer).saved

    def unacknowledged(self, peer: int) -> list[Message]:
        """The messages to send again when the line to a peer is back, in order."""
        return self._copies.edges[peer].unacknowledged() if peer in self._copies.edges else []

    # iterations

    def ends_after(self, iterations: int) -> None:
        """The run has so many iterations from now on: more than any node has finished."""
        self._settings = replace(self._settings, iterations=iterations)

    def computed(self, now: float) -> Mix | None:
        """The gradient of this iteration is there."""
        return self._machine.computed(now, is_last=self.iteration + 1 >= self._settings.iterations)

    def tick(self, now: float) -> Mix | None:
        """Time has passed."""
        return self._machine.tick(now)

    def absent(self, peer: int) -> Mix | None:
        """The line to a peer is lost: do not wait for it until it is heard of."""
        return self._machine.absent(peer)

    def present(self, peer: int) -> None:
        """The line to a peer is back."""
        self._machine.present(peer)

    def pull(self, part: float, out: Tensor) -> None:
        """Where the gradient of this iteration is computed: part of the way from x to the mean of x and its peers. See
        `Copies.pull`."""
        self._copies.pull(self.x, part, self.iteration, out)

    def mix(self, mix: Mix) -> None:
        """Mix the turns of a decision into x, and extend the chain."""
        for turn in mix.turns:
            peer = self._edges.peer(turn.peer)
            if peer.since is None or turn.topology < peer.since:
                continue  # the edge has ended since the decision
            try:
                if self._copies.mix(self.x, [turn], self._assignments.weight):
                    self._chain.extend(turn)
            except PayloadError as error:
                self._edges.refuse(peer, error)

    def stepped(self, step: Tensor) -> None:
        """The node's optimizer has changed x by this."""
        if self._bounds is not None:
            self._bounds.stepped(step)

    # saving

    def state(self) -> MemberState:
        """All that the member holds, right after `begin`. Clone its tensors, or call nothing until they are written."""
        edges, tensors = [], {"x": self.x, "first": self._first}
        for peer in self._edges.joined():
            edge = self._copies.edges[peer.number]
            plain, copies = edge.state()
            edges.append([peer.number, plain])
            tensors |= {f"{peer.number} {name}": copy for name, copy in copies.items()}
            peer.in_state = edge.received
        if self._bounds is not None:
            tensors |= self._bounds.tensors()
        numbers = [
            self.head,
            self._machine.state(),
            self._assignments.plain(),
            self._chain.plain(),
            self._adopted,
            [peer.plain() for _, peer in sorted(self._edges.peers.items())],
            edges,
        ]
        return MemberState(bytes(msgpack.packb(numbers, use_bin_type=True)), tensors)

    def saved(self) -> None:
        """The newest state is on disk, so what it has received may be confirmed."""
        for peer in self._edges.peers.values():
            peer.saved = peer.in_state

    @classmethod
    def restore(cls, layout: TileLayout, settings: MemberSettings, state: MemberState) -> Member:
        """Continue from a state. The tensors are the member's from now on. The line to each peer is lost."""
        tensors, numbers = state.tensors, msgpack.unpackb(state.numbers, strict_map_key=False, raw=False)
        head, machine, assignments, hashes, adopted, peers, edges = numbers
        member = cls(layout, settings, tensors["first"])
        member.x, member._adopted = tensors["x"], adopted
        member._chain.load(head, hashes)
        member._machine.load(machine)
        member._assignments.load(assignments)
        for plain in peers:
            peer = Peer.from_plain(plain)
            member._edges.peers[peer.number] = peer
        for number, plain in edges:
            prefix = f"{number} "
            copies = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            edge, peer = member._copies.join(number, member._first), member._edges.peers[number]
            edge.load(plain, copies)
            peer.in_state = peer.saved = edge.received
        if member._bounds is not None:
            member._bounds.load(tensors)
        return member

    # inside

    def _is_behind(self, peer: int, message: Message) -> bool:
        """Whether a message shows that peers have gone on without this node: a topology had left it out, the newest has
        it again, and the message is the snapshot that begins an edge of the newest, more than AHEAD_MAX iterations
        ahead."""
        newest = self._assignments.newest
        if newest is None or not newest.adopts or message.codec != SNAPSHOT or self.iteration < 0:
            return False
        if message.iteration <= max(self.iteration, self._adopted) + AHEAD_MAX:
            return False
        holds = self._assignments.at(self.iteration).topology
        is_of_newest = since_of(message.sequence) == newest.since.get(peer)
        return is_of_newest and all(since > holds for since in newest.since.values())

    def _end_older(self) -> Mix | None:
        """End the edges from before this node was left out, since their peers have ended them, and begin them anew."""
        holds = self._assignments.at(self.iteration).topology
        for peer in self._edges.joined():
            if peer.since is not None and peer.since <= holds:
                again = peer.renewed
                self._edges.end(peer)
                if again is not None:
                    self._edges.join(peer, again)
        return self._machine.reconsider()  # it may have waited for one of those that have ended

    def _passes_turns(self, peer: int, assignment: Assignment, iteration: int) -> bool:
        """Whether a peer may have begun turns before this iteration for which this node never sends: this node skips
        iterations, or adopts, or one of the two has heard late of a topology."""
        if self.iteration < 0:
            return self._adopted >= 0
        begun = self._machine.topology
        if iteration > self.iteration + 1 or assignment.topology > begun + 1:
            return True
        if assignment.topology == begun:
            return False
        # a peer that hears late may have begun a turn of the topology before
        older = self._assignments.at(self.iteration)
        return assignment.start < iteration or self._assignments.is_sooner(peer, older, assignment)

    def _drop_old(self, holds: Assignment) -> None:
        """Forget what no turn needs any more."""
        needed = self._assignments.needed_peers(holds)
        for peer in self._edges.joined():
            if peer.number not in needed and not self._edges.stays(peer):
                self._edges.end(peer)
        kept = self._machine.kept
        self._assignments.forget(holds, kept)
        self._chain.keep(kept, self.iteration)

    def _message(self, peer: Peer, assignment: Assignment, iteration: int, *, passes: bool) -> Message | None:
        """The message for the turn of an iteration that begins, or one that says that turns before it are passed.
        passes: whether this node may have passed some that the peer has begun."""
        edge, topology = self._copies.edges[peer.number], assignment.topology
        if peer.since is None or peer.since > topology:
            return None  # the edge begins later
        if assignment.since.get(peer.number) != peer.since:  # it has ended
            self._machine.part(peer.number)
            return edge.skip((topology, 0)) if edge.may_send_for((topology, 0)) else None
        if peer.number in assignment.turns(iteration):
            when = topology, iteration
            return edge.send(when, self.x, self._settings.codec) if edge.may_send_for(when) else None
        when = topology, iteration - 1
        return edge.skip(when) if passes and edge.may_send_for(when) else None

    def _read_on(self, peer: Peer) -> Mix | None:
        """Read what waits, as far as this node is."""
        mix = self._edges.tell(peer)
        while peer.unread and (message := peer.unread[0]).topology <= self.topology:
            began = since_of(message.sequence)
            if began != peer.since:
                if began == peer.renewed:
                    if not any(self._adopts(peer, newer) for newer in peer.unread_of(began)):
                        return joined(mix, self._edges.settle(peer))
                    self._edges.end(peer)
                    self._edges.join(peer, began)
                    continue
                peer.unread.popleft()  # of one that has ended, or never will begin: a later one takes its place
                continue
            try:
                self._check_turn(peer.number, message)
                if self._adopts(peer, message):
                    mix = joined(mix, self._adopt(message))
                if peer.arrived or not self._machine.accepts(peer.number):
                    break
                peer.unread.popleft()
                self._take(peer, message)
            except PayloadError as error:
                self._edges.refuse(peer, error)
                return joined(mix, self._machine.absent(peer.number))  # this node may have waited for it alone
            mix = joined(mix, self._edges.tell(peer))
        return mix

    def _check_turn(self, peer: int, message: Message) -> None:
        """Raises PayloadError unless this node has that turn with the peer."""
        is_turn = message.codec == SKIP or self._assignments.may_have(Turn(*message.when, peer))
        if not is_turn or message.iteration >= self._settings.iterations:
            raise PayloadError(
                f"topology {message.topology} has no turn of these two members in iteration {message.iteration}"
            )

    def _take(self, peer: Peer, message: Message) -> None:
        edge = self._copies.edges[peer.number]
        if not edge.has(message.sequence):
            self._chain.note(Turn(*message.when, peer.number), THEIRS, message)
        peer.arrived.extend((Turn(*each.when, peer.number), each.codec == SKIP) for each in edge.receive(message))

    def _adopts(self, peer: Peer, message: Message) -> bool:
        return (self.waits_to_adopt and message.codec == SNAPSHOT) or self._is_behind(peer.number, message)

    def _adopt(self, message: Message) -> Mix | None:
        """Take the parameters of a peer. Raises PayloadError, and then nothing has changed."""
        found = make_codec("dense", self._layout).decode(message.body, self.x.device)
        mix = None if self.iteration < 0 else self._end_older()
        self.x.copy_(found)
        self._adopted = message.iteration
        return mix
