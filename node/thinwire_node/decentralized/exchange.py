"""The exchange of one rank: sends its parameters after a step, and returns what mixing adds to them before the next.

The rules of waiting are those of `thinwire_proto.gossip.iteration`. A turn is one use of an edge; what a turn adds is
w·(theirs − own), for the same iteration on both ends, however late it comes. A peer that is late is waited for within
the slack. One that is gone, has finished, or waits for this rank elsewhere, is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire_node.decentralized.edge_codec import EdgeCodec
from thinwire_node.decentralized.flat import Buffers, FlatLayout
from thinwire_node.decentralized.launched import HostCopies, Launched, Traffic
from thinwire_node.decentralized.lines import Head, Kind, Line
from thinwire_proto.gossip.iteration import AHEAD_MAX, IterationMachine, Mix, Turn
from thinwire_proto.gossip.mixing import late_factor
from thinwire_proto.gossip.topology import Topology

TOPOLOGY_NUMBER = 0
"""The topology of a Gossip never changes."""


class Exchange:
    """The exchange of the ranks of `group`, which has gloo and no other user. None: this rank is alone."""

    def __init__(
        self,
        layout: FlatLayout,
        codec: EdgeCodec,
        topology: Topology,
        group: dist.ProcessGroup | None,
        *,
        slack: int,
        patience_s: float,
    ) -> None:
        self._layout = layout
        self._codec = codec
        self._topology = topology
        self._rank = dist.get_rank(group) if group else 0
        self._patience_s = patience_s
        self._factor = late_factor(slack)
        self._machine = IterationMachine(slack, patience_s)
        self._changed = threading.Condition()
        self._mix: Mix | None = None
        self._launched: dict[int, Launched] = {}
        self._arrived: list[tuple[int, int, Tensor]] = []  # iteration, peer, message; in order, not decoded
        self._messages: dict[
            tuple[int, int], Tensor | None
        ] = {}  # of open turns, by iteration and peer; None: as above
        self._theirs: dict[tuple[int, int], Tensor] = {}  # what decoding has made of them
        self._delta: Tensor | None = None  # of turns that a loaded state had mixed
        self._gone: dict[int, str] = {}  # peers that will send nothing more, and why
        self._missing: set[int] = set()  # peers that were waited for in vain, and were not heard since
        self._noted: dict[tuple[int, int], Head] = {}  # by peer and kind
        self._counts = {Kind.AVERAGING: 0, Kind.SAVING: 0}
        self._news: list[str] = []
        self._closed = False
        self._told: set[int] = set()  # peers that know that this rank ends, or cannot know it any more
        self.traffic = Traffic()
        on_cuda = layout.device.type == "cuda"
        host = torch.device("cpu")
        self._snapshots = Buffers(layout.bytes, device=layout.device)
        self._host = HostCopies(codec.message_bytes_max, pinned=on_cuda)
        self._arriving = Buffers(codec.message_bytes_max, device=host, pinned=on_cuda)
        self._lines: dict[int, Line] = {}
        if group is not None:
            peers = topology.peers(self._rank)
            self._lines = {peer: Line(group, peer, self._arriving, self) for peer in peers}

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
        return sum(len(launched.weights) for launched in self._launched.values())

    def news(self) -> list[str]:
        """What has happened to peers since the last call, in words."""
        with self._changed:
            news, self._news = self._news, []
        return news

    def launch(self) -> None:
        """Begin the next iteration: send the parameters as they are now to the peers of its edges."""
        with self._changed:
            iteration = self._machine.next_iteration
            open_turns = [turn.peer for turn in self._machine.open]
            weights = {
                peer: weight * self._factor
                for peer, weight in sorted(self._topology.at(iteration).rows[self._rank].items())
                if peer not in self._gone and open_turns.count(peer) < AHEAD_MAX
            }
        snapshot = self._snapshots.take()
        self._layout.read(snapshot)
        launched = Launched(snapshot, weights)
        for peer in weights:
            launched.own[peer], launched.messages[peer] = self._codec.encode(peer, snapshot)
        self._begin(iteration, launched, weights)

    def collect(self) -> Tensor | None:
        """Wait for what is due. Returns what to add to the parameters, or None for nothing; `release` it afterwards."""
        began = time.monotonic()
        with self._changed:
            self._decide(self._machine.computed(began))
            while self._mix is None:
                deadline = self._machine.deadline
                assert deadline is not None, "a machine without a deadline has decided"
                self._changed.wait(max(0.0, deadline - time.monotonic()))
                if self._mix is None:
                    self._decide(self._machine.tick(time.monotonic()))
            mix, self._mix = self._mix, None
            for peer in mix.missing:
                self._missing.add(peer)
                self._news.append(f"rank {peer} is left out until it is heard of again: {mix.reason}")
        self.traffic.waited_s += time.monotonic() - began
        return self._mixed(mix.turns)

    def release(self, delta: Tensor) -> None:
        self._snapshots.give(delta)

    def drop(self) -> None:
        """Let what is pending add nothing."""
        self._delta = None
        for launched in self._launched.values():
            launched.weights = dict.fromkeys(launched.weights, 0.0)

    def enter(self, kind: Kind) -> None:
        """Tell the peers that this rank averages or saves now."""
        with self._changed:
            self._counts[kind] += 1
            head = Head(kind, self.iteration, self._counts[kind])
            for peer in self._lines.keys() - self._gone.keys() - self._missing:
                self._machine.present(peer)  # no peer averages without this rank any more
        for peer, line in self._lines.items():
            if peer not in self._gone:
                line.send(head, None, lambda: None)

    def finish(self) -> Tensor | None:
        """Wait for all that was sent here, tell the peers that this rank ends, and wait for their end, each within the
        patience. Returns what to add to the parameters, as `collect`."""
        self._await(lambda: not self._owed())
        delta = self.collect()
        for peer, line in self._lines.items():
            line.send(Head(Kind.FINISHED, self.iteration), None, self._on_told(peer))
        self._await(lambda: self._gone.keys() & self._told >= self._lines.keys())
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return delta

    def state_dict(self) -> dict[str, Any]:
        """What is pending, after waiting for all that the peers have sent until their own call."""
        self.enter(Kind.SAVING)
        self._await(lambda: not any(self._comes(turn) for turn in self._owed()))
        with self._changed:
            arrived = sorted(Turn(TOPOLOGY_NUMBER, *key) for key in self._messages if key[0] <= self.iteration)
            open_turns = self._owed()
        delta = self._accumulate(arrived, keep=True)
        return {
            "iteration": self.iteration,
            "delta": delta,
            "open": [self._open_state(turn) for turn in open_turns],
            "codec": dict(self._codec.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Only before the first iteration."""
        self._codec.load_state_dict(state["codec"])
        self._delta = None if state["delta"] is None else state["delta"].to(self._layout.device, copy=True)
        saved = state["open"]
        for iteration in sorted({turn["iteration"] for turn in saved} | {state["iteration"]}):
            turns = [turn for turn in saved if turn["iteration"] == iteration]
            launched = Launched(self._snapshots.take(), {turn["peer"]: turn["weight"] for turn in turns})
            for turn in turns:
                launched.own[turn["peer"]] = turn["own"].to(self._layout.device, copy=True)
                launched.messages[turn["peer"]] = turn["message"].to(self._layout.device, copy=True)
            if iteration >= 0:
                self._begin(iteration, launched, launched.weights)

    # what the lines report, from their threads

    def await_room(self, peer: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._machine.accepts(peer))

    def on_message(self, peer: int, iteration: int, message: Tensor) -> None:
        with self._changed:
            self.traffic.bytes_received += message.numel()
            self._missing.discard(peer)
            turn = Turn(TOPOLOGY_NUMBER, iteration, peer)
            self._arrived.append((iteration, peer, message))
            if iteration > self._machine.iteration or turn in self._machine.open:
                self._messages[iteration, peer] = None
            self._decide(self._machine.received(turn))
            self._changed.notify_all()

    def on_head(self, peer: int, head: Head) -> None:
        with self._changed:
            self._noted[peer, head.kind] = head
            if head.kind == Kind.FINISHED:
                self._gone.setdefault(peer, f"it has finished, after iteration {head.iteration}")
                self._decide(self._machine.absent(peer))
            elif head.kind == Kind.AVERAGING and head.times > self._counts[Kind.AVERAGING]:
                self._decide(self._machine.absent(peer))  # it waits for this rank, so this one must not wait for it
            self._changed.notify_all()

    def on_lost(self, peer: int, reason: str) -> None:
        with self._changed:
            if peer not in self._gone and not self._closed:
                self._gone[peer] = reason
                self._news.append(f"rank {peer} is gone, and its edges are left out: {reason}")
            self._told.add(peer)
            self._decide(self._machine.absent(peer))
            self._changed.notify_all()

    # inside

    def _begin(self, iteration: int, launched: Launched, peers: Iterable[int]) -> None:
        with self._changed:
            before = self._machine.iteration
            self._machine.begin(TOPOLOGY_NUMBER, iteration, peers)
            for there, peer in list(self._messages):
                if before < there <= iteration and not (there == iteration and peer in launched.weights):
                    del self._messages[there, peer]  # the turn is void: this rank has not sent its own message
            self._launched[iteration] = launched
            launched.unsent = len(launched.messages)
            self._changed.notify_all()
        for peer, message in launched.messages.items():
            self._lines[peer].expect(iteration)
            get, give_back = self._host.copy(message)
            self._lines[peer].send(Head(Kind.MESSAGE, iteration), get, self._on_sent(iteration, launched, give_back))
            self.traffic.bytes_sent += message.numel()

    def _on_sent(self, iteration: int, launched: Launched, give_back: Callable[[], None]) -> Callable[[], None]:
        def on_sent() -> None:
            give_back()
            with self._changed:
                launched.unsent -= 1
                self._forget(iteration, launched)

        return on_sent

    def _forget(self, iteration: int, launched: Launched) -> None:
        """Give the snapshot of an iteration back if nothing needs it."""
        if not launched.weights and self._launched.get(iteration) is launched:
            del self._launched[iteration]
        if not launched.weights and not launched.unsent:
            launched.unsent = -1  # once
            self._snapshots.give(launched.snapshot)

    def _mixed(self, turns: Iterable[Turn]) -> Tensor | None:
        """What these turns and a loaded state add to the parameters."""
        delta = self._accumulate(turns, keep=False)
        with self._changed:
            alive = {(turn.iteration, turn.peer) for turn in self._machine.open if turn.peer not in self._gone}
            alive |= self._messages.keys()
            for iteration, launched in list(self._launched.items()):
                for peer in [peer for peer in launched.weights if (iteration, peer) not in alive]:
                    del launched.weights[peer]  # mixed, or void
                self._forget(iteration, launched)
        return delta

    def _accumulate(self, turns: Iterable[Turn], keep: bool) -> Tensor | None:
        """Σ w·(theirs − own) over these turns, on top of what a loaded state has brought. keep: leave all pending."""
        self._decode_arrived()
        delta, self._delta = self._delta, None
        kept = None if delta is None or not keep else delta.clone()
        for turn in turns:
            launched, key = self._launched[turn.iteration], (turn.iteration, turn.peer)
            theirs = self._theirs[key].clone() if keep else self._theirs.pop(key)
            weight, own = launched.weights[turn.peer], launched.own[turn.peer]
            if delta is None:
                delta = self._snapshots.take().zero_()
            for total, plus, minus in zip(
                self._layout.values(delta), self._layout.values(theirs), self._layout.values(own), strict=True
            ):
                total.add_(plus.sub_(minus), alpha=weight)
            if not keep:
                with self._changed:
                    message = self._messages.pop(key)
                assert message is not None, "a decoded message is kept until it is mixed"
                self._arriving.give(message)
                self.traffic.mixed += 1
                self.traffic.late += turn.iteration < self.iteration
        if keep:
            self._delta = kept
        return delta

    def _decode_arrived(self) -> None:
        """Decode the messages up to this iteration, in their order, also those of void turns: codecs count on it. Those
        that came early stay, because a peer that resumes sends them again."""
        with self._changed:
            early = [one for one in self._arrived if one[0] > self.iteration]
            due = [one for one in self._arrived if one[0] <= self.iteration]
            self._arrived = early
        for iteration, peer, message in due:
            theirs = self._codec.decode(peer, message)
            with self._changed:
                if (iteration, peer) in self._messages:
                    self._messages[iteration, peer] = message
                    self._theirs[iteration, peer] = theirs
                else:
                    self._arriving.give(message)

    def _owed(self) -> list[Turn]:
        """Open turns whose message may still come."""
        gone = self._gone.keys() | self._missing
        return [turn for turn in self._machine.open if turn.peer not in gone]

    def _comes(self, turn: Turn) -> bool:
        """Whether the message of an open turn was sent before the peer saved, or the peer has not saved yet."""
        head = self._noted.get((turn.peer, Kind.SAVING))
        return head is None or head.times != self._counts[Kind.SAVING] or head.iteration >= turn.iteration

    def _open_state(self, turn: Turn) -> dict[str, Any]:
        launched = self._launched[turn.iteration]
        return {
            "iteration": turn.iteration,
            "peer": turn.peer,
            "weight": launched.weights[turn.peer],
            "own": launched.own[turn.peer].clone(),
            "message": launched.messages[turn.peer].clone(),
        }

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
