"""The turns of a rank that are pending: what it sent for them, what has come, and what mixing them adds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from thinwire_node.decentralized.edge_codec import EdgeCodec
from thinwire_node.decentralized.flat import Buffers, FlatLayout
from thinwire_node.decentralized.launched import Launched
from thinwire_proto.gossip.iteration import Turn

TOPOLOGY_NUMBER = 0
"""The topology of a Gossip never changes."""
Key = tuple[int, int]
"""Iteration and peer."""


class Difference(NamedTuple):
    """The addition of a turn to the parameters: values, theirs − own, uint8 [layout.bytes], times weight."""

    weight: float
    values: Tensor


class Arrived(NamedTuple):
    """A message that is not decoded: the first `size` bytes of a buffer."""

    iteration: int
    peer: int
    buffer: Tensor
    size: int


class PendingTurns:
    """arriving: the buffers of messages, which this gives back. changed: guards what the lines' threads share. Methods
    that say so are called with it; all others by the thread that trains, without it."""

    def __init__(self, layout: FlatLayout, codec: EdgeCodec, arriving: Buffers, changed: threading.Condition) -> None:
        self._layout = layout
        self._codec = codec
        self._arriving = arriving
        self._changed = changed
        self._snapshots = Buffers(layout.bytes, device=layout.device)
        self._launched: dict[int, Launched] = {}
        self._arrived: list[Arrived] = []  # in order
        self.messages: dict[Key, Tensor | None] = {}  # buffers, of turns that may be mixed; None: not decoded yet
        self._theirs: dict[Key, Tensor] = {}  # what decoding has made of them
        self._delta: Tensor | None = None  # of turns that were ready when a loaded state was saved
        self._later: dict[Turn, Difference] = {}  # such turns that come after an open one, to be added in their order

    @property
    def count(self) -> int:
        """Turns that this rank has begun and not mixed."""
        return sum(len(launched.weights) for launched in self._launched.values())

    def encode(self, weights: dict[int, float]) -> Launched:
        """Messages of the parameters as they are now, for these peers."""
        snapshot = self._snapshots.take()
        self._layout.read(snapshot)
        launched = Launched(snapshot, weights)
        for peer in weights:
            launched.own[peer], launched.messages[peer] = self._codec.encode(peer, snapshot)
        return launched

    def begin(self, before: int, iteration: int, launched: Launched) -> None:
        """An iteration begins; `before` was the last. With the condition."""
        for there, peer in list(self.messages):
            if before < there <= iteration and not (there == iteration and peer in launched.weights):
                del self.messages[there, peer]  # the turn is void: this rank has not sent its own message
        self._launched[iteration] = launched
        launched.unsent = len(launched.messages)

    def arrived(self, message: Arrived, *, may_be_mixed: bool) -> None:
        """A message is in. With the condition."""
        self._arrived.append(message)
        if may_be_mixed:
            self.messages[message.iteration, message.peer] = None

    def mix(self, turns: Iterable[Turn], iteration: int) -> tuple[Tensor | None, int]:
        """Σ w·(theirs − own) over these turns and those that a loaded state has brought, in their order; or None. And
        the number of these turns that were late. iteration: the newest that was begun."""
        self._decode(iteration)
        delta, self._delta = self._delta, None
        later, self._later = self._later, {}
        late = 0
        for turn in sorted({*turns, *later}):
            key = turn.iteration, turn.peer
            if delta is None:
                delta = self._snapshots.take().zero_()
            self._add(delta, later[turn] if turn in later else self._difference(key, self._theirs.pop(key)))
            if turn in later:
                continue
            with self._changed:
                buffer = self.messages.pop(key)
            assert buffer is not None, "a decoded message is kept until it is mixed"
            self._arriving.give(buffer)
            late += turn.iteration < iteration
        return delta, late

    def release(self, delta: Tensor) -> None:
        """Take back the buffer that `mix` returned."""
        self._snapshots.give(delta)

    def keep(self, alive: set[Key]) -> None:
        """Forget all turns but these, and those whose message is in: they were mixed, or are void. With the
        condition."""
        for iteration, launched in list(self._launched.items()):
            for peer in [peer for peer in launched.weights if (iteration, peer) not in alive | self.messages.keys()]:
                del launched.weights[peer]
            self.forget(iteration, launched)

    def forget(self, iteration: int, launched: Launched) -> None:
        """Give the snapshot of an iteration back if nothing needs it. With the condition."""
        if not launched.weights and self._launched.get(iteration) is launched:
            del self._launched[iteration]
        if not launched.weights and not launched.unsent:
            launched.unsent = -1  # once
            self._snapshots.give(launched.snapshot)

    def drop(self) -> None:
        """Let what is pending add nothing."""
        self._delta, self._later = None, {}
        for launched in self._launched.values():
            launched.weights = dict.fromkeys(launched.weights, 0.0)

    def state(self, iteration: int, open_turns: Sequence[Turn]) -> dict[str, Any]:
        """All of it, with the messages of open turns, to be sent again. Early messages are not in it: their senders
        send them again. Leaves all pending."""
        self._decode(iteration)
        with self._changed:
            ready = [key for key in self.messages if key[0] <= iteration]
            early = sorted(key for key in self.messages if key[0] > iteration)
        found = dict(self._later)
        for key in ready:
            found[Turn(TOPOLOGY_NUMBER, *key)] = self._difference(key, self._theirs[key].clone())
        delta, later = None if self._delta is None else self._delta.clone(), []
        for turn, difference in sorted(found.items()):
            if open_turns and turn > min(open_turns):  # a sum of floats depends on its order
                kept = {"weight": difference.weight, "difference": difference.values.clone()}
                later.append({"iteration": turn.iteration, "peer": turn.peer} | kept)
                continue
            delta = self._layout.empty() if delta is None else delta
            self._add(delta, difference)
        return {
            "iteration": iteration,
            "delta": delta,
            "later": later,
            "open": [self._open_state(turn) for turn in open_turns],
            "early": early,
            "codec": dict(self._codec.state_dict()),
        }

    def load(self, state: Mapping[str, Any]) -> Iterator[tuple[int, Launched]]:
        """Take a state, and yield the iterations to begin again."""
        device = self._layout.device
        self._codec.load_state_dict(state["codec"])
        self._delta = None if state["delta"] is None else state["delta"].to(device, copy=True)
        for turn in state["later"]:
            key = Turn(TOPOLOGY_NUMBER, turn["iteration"], turn["peer"])
            self._later[key] = Difference(turn["weight"], turn["difference"].to(device, copy=True))
        for iteration in sorted({turn["iteration"] for turn in state["open"]} | {state["iteration"]}):
            turns = [turn for turn in state["open"] if turn["iteration"] == iteration]
            launched = Launched(self._snapshots.take(), {turn["peer"]: turn["weight"] for turn in turns})
            for turn in turns:
                launched.own[turn["peer"]] = turn["own"].to(device, copy=True)
                launched.messages[turn["peer"]] = turn["message"].to(device, copy=True)
            if iteration >= 0:
                yield iteration, launched

    def _decode(self, iteration: int) -> None:
        """Decode the messages up to this iteration, in their order, also those of void turns: codecs count on it. Those
        that came early stay, because a peer that resumes sends them again."""
        with self._changed:
            due = [one for one in self._arrived if one.iteration <= iteration]
            self._arrived = [one for one in self._arrived if one.iteration > iteration]
        for there, peer, buffer, size in due:
            theirs = self._codec.decode(peer, buffer[:size])
            with self._changed:
                if (there, peer) in self.messages:
                    self.messages[there, peer] = buffer
                    self._theirs[there, peer] = theirs
                else:
                    self._arriving.give(buffer)

    def _difference(self, key: Key, theirs: Tensor) -> Difference:
        """Compute the addition of a turn. Changes theirs."""
        iteration, peer = key
        launched = self._launched[iteration]
        for plus, minus in zip(self._layout.values(theirs), self._layout.values(launched.own[peer]), strict=True):
            plus.sub_(minus)
        return Difference(launched.weights[peer], theirs)

    def _add(self, delta: Tensor, difference: Difference) -> None:
        for total, values in zip(self._layout.values(delta), self._layout.values(difference.values), strict=True):
            total.add_(values, alpha=difference.weight)

    def _open_state(self, turn: Turn) -> dict[str, Any]:
        launched = self._launched[turn.iteration]
        return {
            "iteration": turn.iteration,
            "peer": turn.peer,
            "weight": launched.weights[turn.peer],
            "own": launched.own[turn.peer].clone(),
            "message": launched.messages[turn.peer].clone(),
        }
