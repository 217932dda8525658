"""Turns over one-way edges: push-sum instead of differences (`thinwire_proto.gossip.push_sum`).

A rank divides its mass and its weight among itself and its targets, and adds what comes from its sources; the
parameters are mass by weight. Nobody needs to know whether the other end has mixed, so no turn is void: each message
counts when it comes, and a share that was not sent stays with the rank. Messages up to the rank's own iteration are
taken, and not those that are early, so that a run does not depend on who was quick.

The parameters belong to the optimizer, and to whoever loads a checkpoint. So before mass is divided or added, their
change is taken in as a step.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.gossip.compressed import tiles_of
from thinwire.gossip.flat import Buffers, FlatLayout
from thinwire.gossip.turns import Arrived, Key, Launched, Mixed
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.push_sum import WEIGHT_MIN, WEIGHT_ONE, Incoming, Outgoing, Push, PushSumNode
from thinwire_proto.gossip.topology import Topology

HEAD = struct.Struct("<Q16s")
"""Before each body: the message's number on its arc, and the running sum of the weight."""


class PushedTurns:
    """Turns of one-way edges, as `turns.Turns` describes them.

    layout: of float32 parameters, alike on all ranks, with equal values now. codec: alike on all ranks, one of
    `push_sum.CODECS`. Raises ConfigError for parameters that are not float32."""

    def __init__(self, topology: Topology, rank: int, codec: str, layout: FlatLayout) -> None:
        targets = {peer for mixing in topology.mixings for peer in mixing.targets(rank)}
        sources = {peer for mixing in topology.mixings for peer in mixing.sources(rank)}
        self._layout = layout
        self._codec = make_codec(codec, tiles_of(layout, "a topology with one-way edges"))
        self.message_bytes_max = HEAD.size + self._codec.bytes_max
        self.arriving = layout.host_buffers(self.message_bytes_max)
        self._buffers = Buffers(layout.bytes, device=layout.device)
        self._known = self._parameters()  # a buffer of them as they were when mass was last brought up to date
        self._node = PushSumNode(self._values(self._known))
        expected = self._node.usual_share() if targets or sources else None
        numbers, device = self._node.mass.numel(), layout.device
        self._outgoing = {peer: Outgoing(numbers, device, expected) for peer in targets}
        self._incoming = {peer: Incoming(expected) for peer in sources}
        self._received: list[Arrived] = []  # to be mixed, in order
        self._iteration = -1  # the newest that was begun
        self._void = -1  # the last iteration whose messages count for nothing

    @property
    def weight(self) -> float:
        return self._node.weight / WEIGHT_ONE

    def launch(self, sources: Mapping[int, float], targets: Collection[int]) -> Launched:
        """Nothing is sent if too little weight would be left; it comes back with the next message from a source."""
        self._take_in_parameters()
        launched = Launched(dict(sources))
        if not targets or self._node.weight < WEIGHT_MIN * (len(targets) + 1):
            return launched
        self._node.share([self._arc_to(peer) for peer in targets])
        for peer in targets:
            push = self._arc_to(peer).push(self._codec)
            message = bytearray(HEAD.pack(push.sequence, push.weight.to_bytes(16, "little")) + push.body)
            launched.messages[peer] = torch.frombuffer(message, dtype=torch.uint8)
        return launched

    def begin(self, iteration: int, launched: Launched) -> None:
        self._iteration = iteration

    def receive(self, messages: Iterable[Arrived]) -> None:
        self._received += messages

    def mix(self, turns: Iterable[Turn], iteration: int, factor: float) -> Mixed:
        """Takes every message that was received, whole, whichever turns the machine has decided on."""
        due, self._received = self._received, []
        if not due:
            return Mixed(0, 0)
        self._take_in_parameters()
        for message in due:
            arc = self._incoming.setdefault(message.peer, Incoming())
            is_void = message.iteration <= self._void
            arc.receive(_push_in(message), self._codec, self._nobody() if is_void else self._node)
            self.arriving.give(message.buffer)
        self._write_parameters()
        return Mixed(len(due), sum(message.iteration < self._iteration for message in due))

    def keep(self, alive: set[Key]) -> None:
        pass

    def sent(self, iteration: int, launched: Launched) -> None:
        pass

    def drop(self) -> None:
        """All ranks begin again with a weight of 1. Messages that were sent before count for nothing when they come."""
        self._know(self._parameters())
        self._node = PushSumNode(self._values(self._known))
        for arc in self._outgoing.values():
            arc.rest.zero_()
        self._void = self._iteration

    def state(self, iteration: int, open_turns: Sequence[Turn], early: Sequence[Arrived]) -> dict[str, Any]:
        """With all messages that are in, early ones too: nothing is sent again."""
        return {
            "iteration": iteration,
            "void": self._void,
            "mass": self._node.mass.clone(),
            "known": self._values(self._known).clone(),
            "weight": self._node.weight,
            "outgoing": {
                peer: {"rest": arc.rest.clone(), "growth": arc.growth.clone()} | _counts(arc)
                for peer, arc in self._outgoing.items()
            },
            "incoming": {
                peer: {"growth": None if arc.growth is None else arc.growth.clone()} | _counts(arc)
                for peer, arc in self._incoming.items()
            },
            "open": [{"iteration": turn.iteration, "peer": turn.peer} for turn in open_turns],
            "arrived": [
                {"iteration": one.iteration, "peer": one.peer, "message": one.buffer[: one.size].clone()}
                for one in [*self._received, *early]
            ],
        }

    def load(self, state: Mapping[str, Any]) -> Iterator[tuple[int, Launched]]:
        device = self._layout.device
        self._void = state["void"]
        self._values(self._known).copy_(state["known"])
        self._node.mass, self._node.weight = state["mass"].to(device, copy=True), state["weight"]
        for peer, saved in state["outgoing"].items():
            out = self._arc_to(peer)
            out.rest, out.growth = (saved[name].to(device, copy=True) for name in ("rest", "growth"))
            out.sequence, out.weight = saved["sequence"], saved["weight"]
        for peer, saved in state["incoming"].items():
            into = self._incoming[peer] = Incoming()
            into.growth = None if saved["growth"] is None else saved["growth"].to(device, copy=True)
            into.sequence, into.weight = saved["sequence"], saved["weight"]
        due = [saved for saved in state["arrived"] if saved["iteration"] <= state["iteration"]]
        self._received = [self._arrived_before(saved) for saved in due]
        for iteration in sorted({turn["iteration"] for turn in state["open"]} | {state["iteration"]}):
            if iteration >= 0:
                yield iteration, Launched({one["peer"]: 0.0 for one in state["open"] if one["iteration"] == iteration})

    def early(self, state: Mapping[str, Any]) -> list[Arrived]:
        early = [saved for saved in state["arrived"] if saved["iteration"] > state["iteration"]]
        return [self._arrived_before(saved) for saved in early]

    def awaited(self, state: Mapping[str, Any]) -> set[Key]:
        return set()

    def _arrived_before(self, saved: Mapping[str, Any]) -> Arrived:
        buffer, message = self.arriving.take(), saved["message"]
        buffer[: message.numel()].copy_(message)
        return Arrived(saved["iteration"], saved["peer"], buffer, message.numel())

    def _arc_to(self, peer: int) -> Outgoing:
        if peer not in self._outgoing:
            self._outgoing[peer] = Outgoing(self._node.mass.numel(), self._node.mass.device)
        return self._outgoing[peer]

    def _nobody(self) -> PushSumNode:
        """Takes what counts for nothing."""
        return PushSumNode(torch.zeros_like(self._node.mass, dtype=torch.float32))

    def _take_in_parameters(self) -> None:
        """Nothing changes if the parameters are not finite, so that good ones can be loaded."""
        now, change = self._parameters(), self._buffers.take()
        try:
            if not torch.equal(now, self._known):
                torch.sub(self._values(self._known), self._values(now), out=self._values(change))
                self._node.step(self._values(change))
            now, self._known = self._known, now
        finally:
            self._buffers.give(now)
            self._buffers.give(change)

    def _write_parameters(self) -> None:
        buffer = self._buffers.take()
        self._node.read(self._values(buffer))
        self._layout.write(buffer)
        self._know(buffer)

    def _know(self, buffer: Tensor) -> None:
        self._buffers.give(self._known)
        self._known = buffer

    def _parameters(self) -> Tensor:
        """A buffer of the parameters as they are now."""
        buffer = self._buffers.take()
        self._layout.read(buffer)
        return buffer

    def _values(self, buffer: Tensor) -> Tensor:
        """The parameters in a buffer, float32 [parameters]."""
        return self._layout.values(buffer)[0]


def _counts(arc: Outgoing | Incoming) -> dict[str, int]:
    return {"sequence": arc.sequence, "weight": arc.weight}


def _push_in(message: Arrived) -> Push:
    data = message.buffer[: message.size].numpy().data
    if len(data) < HEAD.size:
        raise PayloadError(f"rank {message.peer} has sent {len(data)} bytes, which are no message")
    sequence, weight = HEAD.unpack_from(data)
    return Push(sequence, int.from_bytes(weight, "little"), bytes(data[HEAD.size :]))
