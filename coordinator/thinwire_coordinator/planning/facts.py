"""The facts of a model, of data and of a swarm that a plan is made from, and the speeds of machines by name.

A node's real speed is seen in its first minute; the node prints it. Until then, the figures of MACHINES are good to a
factor of about three.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from thinwire_proto.contract import Parameter
from thinwire_proto.contract.trained import Trained
from thinwire_proto.needs import FROZEN_BYTES_A_PARAMETER
from thinwire_proto.pass_memory import ModelMemory

UP_MBIT, DOWN_MBIT = 10.0, 50.0
"""An ordinary home link in many countries."""
RTT_SECONDS = 0.05
"""A round trip between two homes of a continent, if nothing else is known."""
COORDINATOR_CORES = 2
"""As of a small rented server."""

FLOPS_A_PARAMETER = 6.0
"""The operations of both passes, for each token and trained parameter (arXiv 2001.08361, section 2.1)."""


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a model.

    trained: parameters that are trained and travel. frozen: parameters of a frozen base. activation_bytes: what the
    forward pass of one sample keeps for the backward pass, in float32.
    """

    trained: int
    matrix_tiles: int
    vector_tiles: int
    context: int
    frozen: int = 0
    activation_bytes: int = 0
    begins: bool = False
    """Whether the model begins from weights, which are fine-tuned."""
    parameters: tuple[Parameter, ...] = ()
    """Those that are trained."""
    memories: tuple[ModelMemory, ...] = ()
    """With each number of bits that a node may hold a frozen base in, the most exact first. Empty if the passes cannot
    be counted."""
    base_bytes: int = 0
    """Of the files of a frozen base, which each node fetches."""
    gathered_bytes: int = 0
    """A card of a node that divides the model holds so much of others at most, with its gradients."""

    @property
    def frozen_bytes(self) -> int:
        """Memory of what is frozen, with all its bits."""
        return self.memories[0].frozen if self.memories else FROZEN_BYTES_A_PARAMETER * self.frozen

    @property
    def bases(self) -> tuple[ModelMemory, ...]:
        """`memories`, if a node chooses the bits of the base."""
        return tuple(memory for memory in self.memories if memory.bits is not None)

    @property
    def tiles(self) -> int:
        return self.matrix_tiles + self.vector_tiles

    @property
    def size(self) -> Trained:
        return Trained(self.trained, self.matrix_tiles, self.vector_tiles)

    @property
    def components(self) -> int:
        """Components of all tiles, padding included."""
        return self.size.components

    @property
    def padding(self) -> float:
        """The part of all components that is padding: 0 to 1."""
        return 1 - self.trained / self.components

    @property
    def flops_a_token(self) -> float:
        """Operations of a forward and a backward pass: 6 for a trained parameter (arXiv 2001.08361, section 2.1), and
        4 for a frozen one, which needs no gradient of its own. Attention over long contexts costs more."""
        return FLOPS_A_PARAMETER * self.trained + 4.0 * self.frozen


@dataclass(frozen=True)
class DataFacts:
    """Sizes of training data. tokens: by source, held-out ones not included. bytes: of all files that nodes may
    fetch. node_bytes_min: the room that a node asks for before it fetches any. context: that conversations are packed
    for; 0 if there are none. preferences: whether those are pairs of a chosen and a rejected response."""

    tokens: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    node_bytes_min: int = 0
    vocabulary: int = 0
    context: int = 0
    preferences: bool = False

    @property
    def all_tokens(self) -> int:
        return sum(self.tokens.values())


@dataclass(frozen=True)
class SwarmFacts:
    """The nodes of a run and their links. tokens_s: what one node trains per second. rtt_s: the round trip between two
    nodes, and between a node and the coordinator; only a run of gossip is planned by it. cards: of a node, if it was
    said. coordinator_cores: of the coordinator's machine."""

    nodes: int
    up_bits_s: float
    down_bits_s: float
    tokens_s: float
    rtt_s: float = RTT_SECONDS
    cards: int = 0
    coordinator_cores: int = COORDINATOR_CORES


SHARE_OF_PEAK = 0.3
"""Part of a card's peak in bfloat16 that training reaches here: eager torch, float32 parameters. Compiled programs on
large models reach 0.4 to 0.5 (arXiv 2204.02311, section 4.1)."""


class Machine(NamedTuple):
    """flops_s: floating-point operations per second in training. memory_bytes: what a node can use of it; of several
    cards, of each. cards: 0: it is a processor, or it is not known."""

    flops_s: float
    memory_bytes: float
    source: str
    cards: int = 0


MACHINES: dict[str, Machine] = {
    "cpu-core": Machine(26e9, 8e9, "measured: 52 GFLOP/s on two cores of a 3 GHz Xeon in `make swarm`"),
    "laptop": Machine(150e9, 12e9, "estimate: eight cores at 19 GFLOP/s, which share power and memory"),
    "apple-m": Machine(1e12, 12e9, "estimate: 0.3 of the 3.6 TFLOP/s of an M2 in float32"),
    "laptop-gpu": Machine(SHARE_OF_PEAK * 25e12, 8e9, "estimate: 0.3 of a mobile card of 25 TFLOP/s in bfloat16", 1),
    "rtx-3060": Machine(SHARE_OF_PEAK * 25.5e12, 12e9, "estimate: 0.3 of 25.5 TFLOP/s, the peak in bfloat16", 1),
    "rtx-4080": Machine(SHARE_OF_PEAK * 97.5e12, 16e9, "estimate: 0.3 of 97.5 TFLOP/s, the peak in bfloat16", 1),
    "rtx-3090": Machine(SHARE_OF_PEAK * 71e12, 24e9, "estimate: 0.3 of 71 TFLOP/s, the peak in bfloat16", 1),
    "rtx-4090": Machine(SHARE_OF_PEAK * 165e12, 24e9, "estimate: 0.3 of 165 TFLOP/s, the peak in bfloat16", 1),
    "a100": Machine(SHARE_OF_PEAK * 312e12, 80e9, "estimate: 0.3 of 312 TFLOP/s, the peak in bfloat16", 1),
    "h100": Machine(SHARE_OF_PEAK * 989e12, 80e9, "estimate: 0.3 of 989 TFLOP/s, the peak in bfloat16", 1),
}
DEFAULT_MACHINE = "laptop"
SITE = re.compile(r"([1-9][0-9]{0,3})x(.+?)(?:-([1-9][0-9]{0,3})g)?")


def site_of(named: str) -> Machine | None:
    """The cards of a node, such as 8xh100 or 8xH100-80G; None if it is no such name. The memory is that of a card, by
    default as in MACHINES."""
    found = SITE.fullmatch(named.lower())
    card = MACHINES.get(found[2]) if found else None
    if found is None or card is None or not card.cards:
        return None
    cards, memory_bytes = int(found[1]), 1e9 * int(found[3]) if found[3] else card.memory_bytes
    return card._replace(flops_s=cards * card.flops_s, memory_bytes=memory_bytes, cards=cards)
