"""The exchange of one rank: sends its parameters after a step, and mixes what has come into them before the next.

A turn is one use of an edge; what it adds is the business of `Turns`. Both belong to the thread that trains. What the
lines' threads do meanwhile is kept by `Peers`, behind its lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thinwire.gossip.flat import FlatLayout
from thinwire.gossip.lines import LineGroups
from thinwire.gossip.peers import Peers
from thinwire.gossip.turns import HostCopies, Launched, Traffic, Turns
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.mixing import late_factor
from thinwire_proto.gossip.topology import Topology


class Exchange:
    """The exchange of the ranks of `groups`. None: this rank is alone."""

    def __init__(
        self,
        layout: FlatLayout,
        turns: Turns,
        topology: Topology,
        groups: LineGroups | None,
        *,
        slack: int,
        patience_s: float,
    ) -> None:
        self._is_directed = topology.is_directed
        self._factor = late_factor(slack)
        self._turns = turns
        host = HostCopies(layout.host_buffers(turns.message_bytes_max))
        self.peers = Peers(topology, groups, turns.arriving, host, slack=slack, patience_s=patience_s)

    @property
    def traffic(self) -> Traffic:
        return self.peers.traffic

    @property
    def weight(self) -> float | None:
        """That of this rank's parameters in the mean of all ranks. None: all ranks count alike."""
        return self._turns.weight

    def launch(self, iteration: int) -> None:
        """Begin an iteration: send the parameters as they are now to the peers of its edges."""
        self._reclaim()
        edges = self.peers.edges(iteration)
        sources = {peer: weight * self._factor for peer, weight in edges.sources.items()}
        launched = self._turns.launch(sources, edges.targets)
        self._begin(iteration, launched)
        if self._is_directed and (passed := [peer for peer in edges.all_targets if peer not in launched.messages]):
            self.peers.tell_passed(iteration, passed)

    def collect(self, factor: float) -> None:
        """Wait for what is due, and mix it into the parameters. factor: the fraction of the way to the peers."""
        self._mix(self.peers.await_mix().turns, factor, self.peers.iteration)

    def drop(self, iteration: int) -> None:
        """Let what is pending add nothing. The parameters were replaced by the mean of all ranks.

        iteration: the newest that one of them has begun. This rank is there too then, so that no message from before is
        mixed later."""
        if iteration > self.peers.iteration:
            self.peers.tell_passed(iteration)
            self._begin(iteration, Launched({}))
        self._turns.drop()

    def finish(self, factor: float) -> None:
        """Mix all that was sent here, and tell the peers that this rank ends. Over one-way edges, what came early is
        mixed too, or its mass would be lost; with both ends, such a turn is void."""
        self.peers.await_last()
        self.collect(factor)
        last = self.peers.close()
        self._mix(last, factor, self.peers.iteration)
        if self._is_directed:
            self._mix([], factor, math.inf)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is pending, as `thinwire_proto.gossip.cut` defines it. Waits until all peers have
        called this too.

        Raises RemoteError if one does not within the patience, or is left out: no state that fits then exists."""
        number = self.peers.begin_save()
        try:
            saved = self.peers.saved(number)
            self._turns.receive(self.peers.take(self.peers.iteration))
            state = self._turns.state(self.peers.iteration, saved.open_turns, saved.early)
            return {"number": number, "without": saved.without} | state
        finally:
            self.peers.end_save()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Only before the first iteration, and on all ranks. Raises RemoteError if a peer does not load its state."""
        for iteration, launched in self._turns.load(state):
            self._begin(iteration, launched)
        self.peers.resume(self._turns.early(state), self._turns.awaited(state))

    def _begin(self, iteration: int, launched: Launched) -> None:
        self._turns.begin(iteration, launched)
        self.peers.begin(iteration, launched)

    def _mix(self, turns: Sequence[Turn], factor: float, newest: float) -> None:
        self._reclaim()
        self._turns.receive(self.peers.take(newest))
        mixed = self._turns.mix(turns, self.peers.iteration, factor)
        self.traffic.mixed += mixed.messages
        self.traffic.late += mixed.late
        self._turns.keep(self.peers.alive())

    def _reclaim(self) -> None:
        """Use the tensors of messages that are sent again."""
        for iteration, launched in self.peers.take_sent():
            self._turns.sent(iteration, launched)
