"""The turns of a rank that are pending: what it sent for them, what has come, and what mixing them adds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from thinwire.gossip.compressed import EdgeCodec
from thinwire.gossip.flat import Buffers, FlatLayout
from thinwire.gossip.turns import TOPOLOGY_NUMBER, Arrived, Key, Launched, Mixed
from thinwire_proto.gossip.iteration import Turn


class Difference(NamedTuple):
    """The addition of a turn to the parameters: values, theirs − own, uint8 [layout.bytes], times weight."""

    weight: float
    values: Tensor


class Received(NamedTuple):
    """A decoded message. buffer: to be given back once theirs was used. theirs: uint8 [layout.bytes]."""

    buffer: Tensor
    theirs: Tensor


class PendingTurns:
    """Turns of edges with both ends, as `turns.Turns` describes them. A turn adds w·(theirs − own), for the same
    iteration on both ends, however late it comes."""

    weight = None

    def __init__(self, layout: FlatLayout, codec: EdgeCodec) -> None:
        self._layout = layout
        self._codec = codec
        self.message_bytes_max = codec.message_bytes_max
        self.arriving = layout.host_buffers(codec.message_bytes_max)
        self._snapshots = Buffers(layout.bytes, device=layout.device)
        self._launched: dict[int, Launched] = {}
        self._received: dict[Key, Received] = {}  # to be mixed
        self._delta: Tensor | None = None  # of turns that were ready when a loaded state was saved
        self._later: dict[Turn, Difference] = {}  # such turns that come after an open one, to be added in their order

    def launch(self, sources: Mapping[int, float], targets: Collection[int]) -> Launched:
        snapshot = self._snapshots.take()
        self._layout.read(snapshot)
        launched = Launched(dict(sources), snapshot)
        for peer in targets:
            launched.own[peer], launched.messages[peer] = self._codec.encode(peer, snapshot)
        return launched

    def begin(self, iteration: int, launched: Launched) -> None:
        self._launched[iteration] = launched
        launched.unsent = len(launched.messages)

    def receive(self, messages: Iterable[Arrived]) -> None:
        """Decodes also those of void turns: codecs count on it."""
        for message in messages:
            theirs = self._codec.decode(message.peer, message.buffer[: message.size])
            if message.may_be_mixed:
                self._received[message.iteration, message.peer] = Received(message.buffer, theirs)
            else:
                self.arriving.give(message.buffer)

    def mix(self, turns: Iterable[Turn], iteration: int, factor: float) -> Mixed:
        """Adds Σ w·(theirs − own), in the order of the turns."""
        delta, self._delta = self._delta, None
        later, self._later = self._later, {}
        mixed = late = 0
        for turn in sorted({*turns, *later}):
            key = turn.iteration, turn.peer
            if delta is None:
                delta = self._snapshots.take().zero_()
            if turn in later:
                self._add(delta, later[turn])
                continue
            received = self._received.pop(key)
            self._add(delta, self._difference(key, received.theirs))
            self.arriving.give(received.buffer)
            mixed += 1
            late += turn.iteration < iteration
        if delta is not None:
            self._layout.add(delta, factor)
            self._snapshots.give(delta)
        return Mixed(mixed, late)

    def keep(self, alive: set[Key]) -> None:
        for iteration, launched in list(self._launched.items()):
            for peer in [peer for peer in launched.weights if (iteration, peer) not in alive | self._received.keys()]:
                del launched.weights[peer]
            self._forget(iteration, launched)

    def sent(self, iteration: int, launched: Launched) -> None:
        launched.unsent -= 1
        self._forget(iteration, launched)

    def drop(self) -> None:
        self._delta, self._later = None, {}
        for launched in self._launched.values():
            launched.weights = dict.fromkeys(launched.weights, 0.0)

    def state(self, iteration: int, open_turns: Sequence[Turn], early: Sequence[Arrived]) -> dict[str, Any]:
        """With the messages of open turns, to be sent again. Early messages are not in it: their senders send them
        again."""
        found = dict(self._later)
        for key, received in self._received.items():
            found[Turn(TOPOLOGY_NUMBER, *key)] = self._difference(key, received.theirs.clone())
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
            "early": sorted((one.iteration, one.peer) for one in early),
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

    def early(self, state: Mapping[str, Any]) -> list[Arrived]:
        return []

    def awaited(self, state: Mapping[str, Any]) -> set[Key]:
        return {(iteration, peer) for iteration, peer in state["early"]}

    def _forget(self, iteration: int, launched: Launched) -> None:
        """Give the snapshot of an iteration back if nothing needs it."""
        if not launched.weights and self._launched.get(iteration) is launched:
            del self._launched[iteration]
        if not launched.weights and not launched.unsent and launched.snapshot is not None:
            self._snapshots.give(launched.snapshot)
            launched.snapshot = None  # once

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
