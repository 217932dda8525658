"""What a rank knows of its peers, and the messages between them: all that its trainer shares with the lines' threads.

One lock guards all of it, and only the methods here take it. The lines report through those of `lines.Listener`; the
thread that trains calls the others. What mixing needs (`Turns`) belongs to that thread alone: messages wait here until
it takes them.

The rules of waiting are those of `thinwire_proto.gossip.iteration`. A peer that is late is waited for within the slack.
One that is gone, has finished, or waits for this rank elsewhere, is not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from thinwire.gossip.flat import Buffers
from thinwire.gossip.lines import Head, Kind, Line, LineGroups, Outgoing, SendOrder
from thinwire.gossip.turns import TOPOLOGY_NUMBER, Arrived, Edges, HostCopies, Key, Launched, Traffic
from thinwire_proto.errors import RemoteError
from thinwire_proto.gossip.cut import Cut
from thinwire_proto.gossip.iteration import AHEAD_MAX, IterationMachine, Mix, Turn
from thinwire_proto.gossip.topology import Topology, lead_of


class Saved(NamedTuple):
    """What a save finds: the turns that are open, peers that are gone, and messages that came early."""

    open_turns: list[Turn]
    without: list[int]
    early: list[Arrived]


class Peers:
    """The peers of one rank. groups: None if it is alone. arriving: the buffers of messages that come."""

    def __init__(
        self,
        topology: Topology,
        groups: LineGroups | None,
        arriving: Buffers,
        host: HostCopies,
        *,
        slack: int,
        patience_s: float,
    ) -> None:
        self._changed = threading.Condition()
        self._topology = topology
        self._rank = groups.heads.rank() if groups else 0
        self._patience_s = patience_s
        self._machine = IterationMachine(slack, patience_s, lead_of(topology, slack))
        self._mix: Mix | None = None
        self._gone: dict[int, str] = {}  # peers that will send nothing more, and why
        self._missing: set[int] = set()  # peers that were waited for in vain, and were not heard since
        self._noted: dict[tuple[int, int], Head] = {}  # by peer and kind
        self._arrived: list[Arrived] = []  # in order
        self._sent: list[tuple[int, Launched]] = []  # an item a message whose tensor may be used again
        self._averaged = 0
        self._cut = Cut()
        self._news: list[str] = []
        self._closed = False
        self._is_ending = False  # nothing more is begun, and no message is too early to be read
        self._told: set[int] = set()  # peers that know that this rank ends, or cannot know it any more
        self._host = host
        self._outgoing = SendOrder(patience_s / 2)  # peers that wait for what is held up still get it in time
        self.traffic = Traffic()
        self._lines: dict[int, Line] = {}
        if groups is not None:
            self._lines = {peer: Line(groups, peer, arriving, self) for peer in topology.peers(self._rank)}

    # what is known

    @property
    def iteration(self) -> int:
        """The newest that this rank has begun; -1 before the first."""
        return self._machine.iteration

    @property
    def left_out(self) -> dict[int, str]:
        """The peers that this rank no longer waits for, and why. Those that are only late come back. Those that have
        finished are not among them."""
        with self._changed:
            late = dict.fromkeys(self._missing, f"nothing within {self._patience_s:g} s")
            finished = {peer for peer, kind in self._noted if kind == Kind.FINISHED}
            return {peer: why for peer, why in sorted((late | self._gone).items()) if peer not in finished}

    @property
    def gone(self) -> set[int]:
        """The peers that will send nothing more because their line broke."""
        with self._changed:
            return {peer for peer in self._gone if (peer, Kind.FINISHED) not in self._noted}

    @property
    def pending(self) -> int:
        """Turns that this rank has begun and not mixed."""
        with self._changed:
            return self._machine.unmixed

    def news(self) -> list[str]:
        with self._changed:
            news, self._news = self._news, []
        return news

    @property
    def next_iteration(self) -> int:
        with self._changed:
            return self._machine.next_iteration

    # an iteration, in its order

    def edges(self, iteration: int) -> Edges:
        """The edges of an iteration that is to begin now."""
        mixing = self._topology.at(iteration)
        with self._changed:
            skips = iteration > self._machine.iteration + 1
            slow = self._not_keeping_up()
            sources = {
                peer: weight
                for peer, weight in sorted(mixing.rows[self._rank].items())
                if peer not in self._gone and (self._topology.is_directed or peer not in slow)
            }
            targets = [peer for peer in mixing.targets(self._rank) if peer not in self._gone]
        if skips:
            self.tell_passed(iteration - 1)
        return Edges(sources, [peer for peer in targets if peer not in slow], targets)

    def begin(self, iteration: int, launched: Launched) -> None:
        """An iteration begins: expect its messages, and send those of this rank."""
        sources = list(launched.weights)
        with self._changed:
            before = self._machine.iteration
            self._arrived = [
                # a turn is void where this rank has not sent its own message
                one._replace(may_be_mixed=False)
                if before < one.iteration <= iteration and not (one.iteration == iteration and one.peer in sources)
                else one
                for one in self._arrived
            ]
            self._machine.begin(TOPOLOGY_NUMBER, iteration, sources)
            self._changed.notify_all()
        for peer in sources:
            self._lines[peer].expect(iteration)
        for peer, message in launched.messages.items():
            get, give_back = self._host.copy(message)
            head = Head(Kind.MESSAGE, iteration, size=message.numel())
            with self._changed:
                self._outgoing.add(Outgoing(peer, head, get, self._on_sent(iteration, launched, give_back)))
            self.traffic.bytes_sent += message.numel()
        self._send_messages()

    def await_mix(self) -> Mix:
        """Wait for what is due, and return what to mix."""
        began = time.monotonic()
        with self._changed:
            self._decide(self._machine.computed(began))
            while self._mix is None:
                deadline = self._machine.deadline
                assert deadline is not None, "a machine without a deadline has decided"
                until = min(deadline, self._outgoing.held_until(self._reads))
                self._changed.wait(max(0.0, until - time.monotonic()))
                self._send_messages()
                if self._mix is None:
                    self._decide(self._machine.tick(time.monotonic()))
            mix, self._mix = self._mix, None
            for peer in mix.missing:
                self._missing.add(peer)
                self._news.append(f"rank {peer} is left out until it is heard of again: {mix.reason}")
        if mix.missing:
            self._send_messages()
        self.traffic.waited_s += time.monotonic() - began
        return mix

    def take(self, newest: float) -> list[Arrived]:
        """The messages up to this iteration, in order. Those that came early stay."""
        with self._changed:
            due = [one for one in self._arrived if one.iteration <= newest]
            self._arrived = [one for one in self._arrived if one.iteration > newest]
        return due

    def take_sent(self) -> list[tuple[int, Launched]]:
        """Iterations a message of which has left its buffer since the last call."""
        with self._changed:
            sent, self._sent = self._sent, []
        return sent

    def alive(self) -> set[Key]:
        """The turns that may still be mixed."""
        with self._changed:
            may_come = {(turn.iteration, turn.peer) for turn in self._machine.open if turn.peer not in self._gone}
            return may_come | {(one.iteration, one.peer) for one in self._arrived if one.may_be_mixed}

    # beside the iterations

    def tell_passed(self, iteration: int, peers: Iterable[int] | None = None) -> None:
        """Say that this rank sends no more messages for turns up to this iteration."""
        self._send(Head(Kind.PASSED, iteration), peers)

    def enter_averaging(self) -> None:
        with self._changed:
            self._averaged += 1
        self._tell(Kind.AVERAGING, self._averaged)

    def await_last(self) -> None:
        """This rank begins nothing more: wait for all that was sent here, at most for the patience."""
        with self._changed:
            self._cut.close()
            self._is_ending = self._topology.is_directed
            self._changed.notify_all()
        self._send_messages(at_once=True)
        self._await(lambda: not self._owed())

    def close(self) -> Sequence[Turn]:
        """Tell the peers that this rank ends, wait for their end, each within the patience, and return what came until
        then, to be mixed as its peer has done."""
        for peer, line in self._lines.items():
            line.send(Head(Kind.FINISHED, self.iteration), None, self._on_told(peer))
        self._await(lambda: self._gone.keys() & self._told >= self._lines.keys())
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            last = self._machine.computed(time.monotonic()) or self._machine.tick(math.inf)
        assert last is not None, "the patience is over"
        return last.turns

    def begin_save(self) -> int:
        """Mark the cut of a save, and wait until all peers have. Returns its number. `end_save` must follow."""
        with self._changed:
            number = self._cut.begin()
        self._tell(Kind.SAVING, number)
        self._await(lambda: not self._cut.missing(self._lines.keys() - self._gone.keys() - self._missing))
        return number

    def saved(self, number: int) -> Saved:
        """Raises RemoteError if a peer has not saved too, or is left out: no state that fits then exists."""
        with self._changed:
            unsaved = {*self._cut.missing(self._lines.keys() - self._gone.keys()), *self._cut.without(self._lines)}
        if unsaved:
            self._tell(Kind.UNSAVED, number)
            raise RemoteError(
                f"rank {', '.join(map(str, sorted(unsaved)))}: not saved with the others within "
                f"{self._patience_s:g} s, so the states would not fit "
                "together. All ranks call state_dict equally often; save again once stats()['left_out'] is empty"
            )
        with self._changed:
            open_turns = [turn for turn in self._machine.open if self._cut.is_open(turn.peer, turn.iteration)]
            without = sorted(self._cut.missing(self._lines))
            early = [one for one in self._arrived if one.iteration > self._machine.iteration]
        return Saved(open_turns, without, early)

    def end_save(self) -> None:
        with self._changed:
            self._cut.end()
            self._changed.notify_all()

    def resume(self, early: Sequence[Arrived], awaited: Collection[Key]) -> None:
        """Go on from a state. early: its messages that came early. awaited: those that peers send again once they have
        loaded theirs. Raises RemoteError if one does not come."""
        with self._changed:
            self._arrived = [*early, *self._arrived]  # peers that have loaded theirs may have sent something already
            self._machine.hold([Turn(TOPOLOGY_NUMBER, one.iteration, one.peer) for one in early])
        self.tell_passed(self.iteration)
        self._await(lambda: not self._absent(awaited))
        with self._changed:
            if absent := self._absent(awaited):
                raise RemoteError(f"rank {min(absent)[1]} has not loaded its state within {self._patience_s:g} s")

    # what the lines report, from their threads

    def await_room(self, peer: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._accepts(peer) and not self._cut.holds(peer)))

    def on_message(self, peer: int, iteration: int, buffer: Tensor, size: int) -> None:
        with self._changed:
            self.traffic.bytes_received += size
            self._missing.discard(peer)
            turn = Turn(TOPOLOGY_NUMBER, iteration, peer)
            may_be_mixed = iteration > self._machine.iteration or turn in self._machine.open
            self._arrived.append(Arrived(iteration, peer, buffer, size, may_be_mixed))
            if self._machine.accepts(peer) or iteration <= self._machine.iteration:
                self._decide(self._machine.received(turn))
            self._changed.notify_all()

    def on_head(self, peer: int, head: Head) -> None:
        with self._changed:
            self._noted[peer, head.kind] = head
            if head.kind == Kind.FINISHED:
                self._gone.setdefault(peer, f"it has finished, after iteration {head.iteration}")
                self._decide(self._machine.absent(peer))
            elif head.kind == Kind.SAVING:
                self._cut.marked(peer, head.times, head.iteration)
                self._missing.discard(peer)
            elif head.kind == Kind.PASSED:
                self._decide(self._machine.passed(peer, TOPOLOGY_NUMBER, head.iteration))
            elif head.kind == Kind.UNSAVED:
                self._cut.given_up(peer, head.times)
            elif head.kind == Kind.RECEIVED:
                self._outgoing.arrived(head.iteration, peer)
            if self._waits_elsewhere(peer):
                self._decide(self._machine.absent(peer))
            self._changed.notify_all()
        self._send_messages()

    def on_lost(self, peer: int, reason: str) -> None:
        with self._changed:
            if peer not in self._gone and not self._closed:
                self._gone[peer] = reason
                self._news.append(f"rank {peer} is gone, and its edges are left out: {reason}")
            self._told.add(peer)
            self._decide(self._machine.absent(peer))
            self._changed.notify_all()
        self._send_messages()

    # inside

    def _accepts(self, peer: int) -> bool:
        return self._is_ending or self._machine.accepts(peer)

    def _not_keeping_up(self) -> set[int]:
        """The peers that get no more until they have answered what they were sent, or, one-way, received it."""
        if self._topology.is_directed:
            return {peer for peer in self._lines if self._outgoing.count(peer) >= AHEAD_MAX}
        unanswered = [turn.peer for turn in self._machine.open]
        return {peer for peer in unanswered if unanswered.count(peer) >= AHEAD_MAX}

    def _send_messages(self, *, at_once: bool = False) -> None:
        with self._changed:
            now = time.monotonic()
            for one in self._outgoing.all(now) if at_once else self._outgoing.due(self._reads, now):
                self._lines[one.peer].send(one.head, one.message, one.sent)

    def _reads(self, peer: int) -> bool:
        """Whether the peer reads on, and waits for nothing else of this rank."""
        return peer not in self._gone and peer not in self._missing and not self._waits_elsewhere(peer)

    def _on_sent(self, iteration: int, launched: Launched, give_back: Callable[[], None]) -> Callable[[], None]:
        def on_sent() -> None:
            give_back()
            with self._changed:
                self._sent.append((iteration, launched))

        return on_sent

    def _owed(self) -> list[Turn]:
        """Open turns whose message may still come."""
        gone = self._gone.keys() | self._missing
        return [turn for turn in self._machine.open if turn.peer not in gone]

    def _absent(self, awaited: Collection[Key]) -> set[Key]:
        return {*awaited} - {(one.iteration, one.peer) for one in self._arrived if one.may_be_mixed}

    def _tell(self, kind: Kind, times: int) -> None:
        with self._changed:
            for peer in self._lines.keys() - self._gone.keys() - self._missing:
                if not self._waits_elsewhere(peer):
                    self._machine.present(peer)  # no peer averages or saves without this rank any more
        self._send(Head(kind, self.iteration, times))

    def _send(self, head: Head, peers: Iterable[int] | None = None) -> None:
        """To these peers, or all, that are not gone, after all messages that were begun before."""
        self._send_messages(at_once=True)
        for peer in self._lines if peers is None else peers:
            if peer not in self._gone:
                self._lines[peer].send(head, None, lambda: None)

    def _waits_elsewhere(self, peer: int) -> bool:
        """Whether the peer averages or saves already, so that this rank must not wait for it."""
        averages = self._noted.get((peer, Kind.AVERAGING))
        return self._cut.is_ahead(peer) or (averages is not None and averages.times > self._averaged)

    def _decide(self, mix: Mix | None) -> None:
        if mix is not None:
            self._mix = mix
            self._changed.notify_all()

    def _await(self, done: Callable[[], bool]) -> None:
        """Wait until it is so, at most for the patience."""
        with self._changed:
            self._changed.wait_for(done, timeout=self._patience_s)

    def _on_told(self, peer: int) -> Callable[[], None]:
        def on_told() -> None:
            with self._changed:
                self._told.add(peer)
                self._changed.notify_all()

        return on_told
