"""Averaging over links that are one-way: push-sum with running sums.

On a directed graph a node cannot know whether what it gives away was received, and rows of weights do not add up to 1.
Push-sum divides a node's mass s and its weight w among itself and its targets; x = s/w converges to the mean (Kempe,
Dobra and Gehrke 2003). A lost message would take mass with it. So a sender never sends a share, but the running sum of
all shares since the beginning, and the receiver adds what is new in it (Hadjicostis, Vaidya and Domínguez-García,
Robust distributed average consensus via exchange of running sums, 2016). A running sum may be compressed like a copy:
what the codec dropped stays in the difference (Taheri et al., Quantized decentralized stochastic learning over directed
graphs, 2020). But a running sum grows by a whole share each time, and a codec's error is a part of what it is given. So
both ends expect the share of the last time, and only the rest is encoded. At first they expect half of what all nodes
begin with, where these are equal. The codec must keep nearly all of it: with `sign` this diverges.

Mass is counted in integers modulo 2⁶⁴, in units of 2⁻³². A share is rounded down and the rest stays with the sender, so
no mass is ever lost or made, and a running sum may wrap around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_proto.errors import LocalError, PayloadError
from thinwire_proto.gossip.codec import Codec
from thinwire_proto.gossip.final_mean import NODES_MAX

UNIT = 2.0**-32
PART_NUMBERS = 1 << 15
"""On a CPU, so many numbers are taken at a time: what is between two operations on them stays in the cache."""
MASS_MAX = 2.0**24
"""Bound on a node's |s|, so that a share and a step are far from the wrap-around at 2³¹."""
SHARE_MAX = 2 * MASS_MAX
"""Bound on what a message adds: as much as the last one, where a codec may have missed as much as a mass, and what is
new."""
WEIGHT_ONE = 1 << 40
WEIGHT_MAX = NODES_MAX * WEIGHT_ONE
"""Bound on a node's weight: all weights together are that of the number of nodes."""
WEIGHT_MIN = WEIGHT_ONE >> 10
"""The least weight to keep. A node that gave away more would count its parameters in units above 2⁻²²."""
CODECS = ("dense", "bf16", "int8")
"""Those that keep nearly all of a share."""


@dataclass(frozen=True)
class Push:
    """A message over an arc. sequence: from 1. weight: the running sum of the weight, not compressed. body: by how much
    more the public running sum of the mass grows than the last time."""

    sequence: int
    weight: int
    body: bytes


class Outgoing:
    """An arc at its source.

    rest: mass that was given to the arc and is in no message yet, int64 [parameters]. growth: of the public running sum
    in the last message; before the first, what is expected at both ends. weight, sequence: those of the last message.
    """

    def __init__(self, parameters: int, device: torch.device | str = "cpu", expected: Tensor | None = None) -> None:
        self.rest = torch.zeros(parameters, dtype=torch.int64, device=device)
        self.growth = torch.zeros_like(self.rest) if expected is None else expected.clone()
        self.weight = self.sequence = 0

    def push(self, codec: Codec) -> Push:
        """Make the next message."""
        rest = torch.empty(self.rest.shape, device=self.rest.device)
        for part, growth, units in _parts(rest, self.growth, self.rest):
            part.copy_(units.sub_(growth).to(torch.float64).mul_(UNIT))
        body = codec.encode(rest)
        more = codec.decode(body, self.rest.device)
        _check(more)
        for units, growth, part in _parts(self.rest, self.growth, more):
            new = _units_of(part)
            units.sub_(new)
            growth.add_(new)
        self.sequence += 1
        return Push(self.sequence, self.weight, body)


class Incoming:
    """An arc at its target. Its line brings each message once and in order.

    growth: of the running sum in the last message; before the first, what is expected at both ends, and None for
    nothing. weight, sequence: those of that message.
    """

    def __init__(self, expected: Tensor | None = None) -> None:
        self.sequence = self.weight = 0
        self.growth = None if expected is None else expected.clone()

    def receive(self, push: Push, codec: Codec, to: PushSumNode) -> None:
        """Give the node what is new. Raises PayloadError, and then changes nothing."""
        if push.sequence != self.sequence + 1:
            raise PayloadError(f"message {push.sequence} of an arc came after message {self.sequence}")
        if push.weight < self.weight:
            raise PayloadError("the running sum of an arc's weight has become smaller")
        if to.weight + push.weight - self.weight > WEIGHT_MAX:
            raise PayloadError(f"a node's weight would be more than that of {NODES_MAX} nodes")
        more = codec.decode(push.body, to.mass.device)
        try:
            _check(more)
        except LocalError as error:
            raise PayloadError(f"message {push.sequence} of an arc: {error}") from None
        growth = torch.zeros_like(to.mass) if self.growth is None else self.growth
        if _largest(growth) * UNIT + _largest(more) > SHARE_MAX:
            raise PayloadError(f"message {push.sequence} of an arc: its share is beyond ±{SHARE_MAX:g}")
        for old, part, mass in _parts(growth, more, to.mass):
            mass.add_(old.add_(_units_of(part)))
        self.growth = growth
        to.weight += push.weight - self.weight
        self.sequence, self.weight = push.sequence, push.weight


class PushSumNode:
    """The mass and the weight of a node. x: its parameters at the beginning, float32, flat."""

    def __init__(self, x: Tensor) -> None:
        self.mass = _in_units(x)
        self.weight = WEIGHT_ONE

    @property
    def x(self) -> Tensor:
        """The parameters, float32: mass by weight."""
        return self.read(torch.empty(self.mass.shape, device=self.mass.device))

    def read(self, to: Tensor) -> Tensor:
        """Copy x into a tensor, and return it."""
        for part, mass in _parts(to, self.mass):
            part.copy_(mass.to(torch.float64).mul_(UNIT * WEIGHT_ONE / self.weight))
        return to

    def usual_share(self) -> Tensor:
        """The share that goes to one target, half of the mass: int64 [parameters]."""
        return self.mass >> 1

    def step(self, change: Tensor) -> None:
        """x ← x − change. Raises LocalError if the mass grows beyond its bound: training has diverged."""
        _check(change)
        for mass, part in _parts(self.mass, change):
            mass.sub_(_units_of(part, self.weight / WEIGHT_ONE))
        if _largest(self.mass) > MASS_MAX / UNIT:
            raise LocalError("the parameters of push-sum are out of bounds: training has diverged")

    def share(self, arcs: list[Outgoing]) -> None:
        """Divide mass and weight evenly among this node and its arcs."""
        count = len(arcs) + 1
        for mass, *rests in _parts(self.mass, *(arc.rest for arc in arcs)):
            given = mass >> 1 if count == 2 else torch.div(mass, count, rounding_mode="floor")
            for rest in rests:
                rest.add_(given)
                mass.sub_(given)
        weight = self.weight // count
        for arc in arcs:
            arc.weight += weight
            self.weight -= weight


def _in_units(values: Tensor) -> Tensor:
    """Whole units, int64, of float32. Raises LocalError for numbers out of bounds."""
    _check(values)
    found = torch.empty(values.shape, dtype=torch.int64, device=values.device)
    for part, numbers in _parts(found, values):
        part.copy_(_units_of(numbers))
    return found


def _units_of(part: Tensor, factor: float = 1.0) -> Tensor:
    """Whole units, int64, of numbers within bounds, times the factor."""
    return part.to(torch.float64).mul_(factor / UNIT).round_().to(torch.int64)


def _check(values: Tensor) -> None:
    if not _largest(values) <= MASS_MAX:
        raise LocalError(f"the numbers of push-sum must be finite and within ±{MASS_MAX:g}")


def _largest(values: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(abs(low.item()), abs(high.item()))


def _parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same numbers of each tensor."""
    numbers = PART_NUMBERS if tensors[0].device.type == "cpu" else max(1, tensors[0].numel())
    return zip(*(torch.split(tensor, numbers) for tensor in tensors), strict=True)
