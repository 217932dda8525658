"""The turns of a rank that are pending: what it sent for them, what has come, and what mixing them adds."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from thinwire.gossip.edge_codec import EdgeCodec
from thinwire.gossip.flat import Buffers, FlatLayout
from thinwire.gossip.launched import Launched
from thinwire.gossip.turns import TOPOLOGY_NUMBER, Arrived, Key, Mixed
from thinwire_proto.gossip.iteration import Turn


class Difference(NamedTuple):
    """The addition of a turn to the parameters: values, theirs − own, uint8 [layout.bytes], times weight."""

    weight: float
    values: Tensor


class PendingTurns:
    """Turns of edges with both ends, as `turns.Turns` describes them. A turn adds w·(theirs − own), for the same
    iteration on both ends, however late it comes."""

    weight = None

    def __init__(self, layout: FlatLayout, codec: EdgeCodec) -> None:
        self._layout = layout
        self._codec = codec
        self.changed = threading.Condition()
        self.message_bytes_max = codec.message_bytes_max
        self.arriving = layout.host_buffers(codec.message_bytes_max)
        self._snapshots = Buffers(layout.bytes, device=layout.device)
        self._launched: dict[int, Launched] = {}
        self._arrived: list[Arrived] = []  # in order
        self._messages: dict[Key, Tensor | None] = {}  # buffers, of turns that may be mixed; None: not decoded yet
        self._theirs: dict[Key, Tensor] = {}  # what decoding has made of them
        self._delta: Tensor | None = None  # of turns that were ready when a loaded state was saved
        self._later: dict[Turn, Difference] = {}  # such turns that come after an open one, to be added in their order

    def launch(self, sources: Mapping[int, float], targets: Collection[int]) -> Launched:
        snapshot = self._snapshots.take()
        self._layout.read(snapshot)
        launched = Launched(dict(sources), snapshot)
        for peer in targets:
            launched.own[peer], launched.messages[peer] = self._codec.encode(peer, snapshot)
        return launched

    def begin(self, before: int, iteration: int, launched: Launched) -> None:
        for there, peer in list(self._messages):
            if before < there <= iteration and not (there == iteration and peer in launched.weights):
                del self._messages[there, peer]  # the turn is void: this rank has not sent its own message
        self._launched[iteration] = launched
        launched.unsent = len(launched.messages)

    def arrived(self, message: Arrived, *, may_be_mixed: bool) -> None:
        self._arrived.append(message)
        if may_be_mixed:
            self._messages[message.iteration, message.peer] = None

    def mix(self, turns: Iterable[Turn], iteration: int, factor: float) -> Mixed:
        """Adds Σ w·(theirs − own), in the order of the turns."""
        self._decode(iteration)
        delta, self._delta = self._delta, None
        later, self._later = self._later, {}
        mixed = late = 0
        for turn in sorted({*turns, *later}):
            key = turn.iteration, turn.peer
            if delta is None:
                delta = self._snapshots.take().zero_()
            self._add(delta, later[turn] if turn in later else self._difference(key, self._theirs.pop(key)))
            if turn in later:
                continue
            with self.changed:
                buffer = self._messages.pop(key)
            assert buffer is not None, "a decoded message is kept until it is mixed"
            self.arriving.give(buffer)
            mixed += 1
            late += turn.iteration < iteration
        if delta is not None:
            self._layout.add(delta, factor)
            self._snapshots.give(delta)
        return Mixed(mixed, late)

    def mix_early(self) -> Mixed:
        """Nothing: without a message of this rank, a turn is void on both ends."""
        return Mixed(0, 0)

    def keep(self, alive: set[Key]) -> None:
        for iteration, launched in list(self._launched.items()):
            for peer in [peer for peer in launched.weights if (iteration, peer) not in alive | self._messages.keys()]:
                del launched.weights[peer]
            self._forget(iteration, launched)

    def sent(self, iteration: int, launched: Launched) -> None:
        launched.unsent -= 1
        self._forget(iteration, launched)

    def drop(self) -> None:
        self._delta, self._later = None, {}
        for launched in self._launched.values():
            launched.weights = dict.fromkeys(launched.weights, 0.0)

    def state(self, iteration: int, open_turns: Sequence[Turn]) -> dict[str, Any]:
        """With the messages of open turns, to be sent again. Early messages are not in it: their senders send them
        again."""
        self._decode(iteration)
        with self.changed:
            ready = [key for key in self._messages if key[0] <= iteration]
            early = sorted(key for key in self._messages if key[0] > iteration)
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
        device = self._layout.device
        self._codec.load_state_dict(state["codec"])
        self._delta = None if state["delta"] is None else state["delta"].to(device, copy=True)
        for turn in state["later"]:
            key = Turn(TOPOLOGY_NUMBER, turn["iteration"], turn["peer"])
            self._later[key] = Difference(turn["weight"], turn["difference"].to(device, copy=True))
        for iteration in sorted({turn["iteration"] for turn in state["open"]} | {state["iteration"]}):
            turns = [turn for turn in state["open"] if turn["iteration"] == iteration]
            launched = Launched({turn["peer"]: turn["weight"] for turn in turns}, self._snapshots.take())
            for turn in turns:
                launched.own[turn["peer"]] = turn["own"].to(device, copy=True)
                launched.messages[turn["peer"]] = turn["message"].to(device, copy=True)
            if iteration >= 0:
                yield iteration, launched

    def early(self, state: Mapping[str, Any]) -> list[Turn]:
        return []

    def awaits(self, state: Mapping[str, Any]) -> set[Key]:
        return {(iteration, peer) for iteration, peer in state["early"]} - self._messages.keys()

    def _forget(self, iteration: int, launched: Launched) -> None:
        """Give the snapshot of an iteration back if nothing needs it. With the condition."""
        if not launched.weights and self._launched.get(iteration) is launched:
            del self._launched[iteration]
        if not launched.weights and not launched.unsent and launched.snapshot is not None:
            self._snapshots.give(launched.snapshot)
            launched.snapshot = None  # once

    def _decode(self, iteration: int) -> None:
        """Decode the messages up to this iteration, in their order, also those of void turns: codecs count on it. Those
        that came early stay, because a peer that resumes sends them again."""
        with self.changed:
            due = [one for one in self._arrived if one.iteration <= iteration]
            self._arrived = [one for one in self._arrived if one.iteration > iteration]
        for there, peer, buffer, size in due:
            theirs = self._codec.decode(peer, buffer[:size])
            with self.changed:
                if (there, peer) in self._messages:
                    self._messages[there, peer] = buffer
                    self._theirs[there, peer] = theirs
                else:
                    self.arriving.give(buffer)

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
