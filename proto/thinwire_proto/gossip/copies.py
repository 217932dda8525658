"""The edges of a node, each with its own two public copies, and how far the node mixes.

What fails: a copy a node, shared by all its neighbours, takes less memory. But then each message must reach each
neighbour, also those that it does not mix with in this iteration, and one that is late for one neighbour holds the copy
of all. Here most graphs give a node one peer in an iteration. So each edge has its own two copies: 8 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.bounds import MixBounds
from thinwire_proto.gossip.edge import Edge
from thinwire_proto.gossip.iteration import Turn


def pull(x: Tensor, peers: Sequence[Tensor], part: float, out: Tensor) -> Tensor:
    """Where a node computes its gradients: out ← x + part·(m − x), with m the mean of x and the peers' copies. Returns
    out.

    The problem: a codec of one bit leaves a rest x − h on each edge, as large as the disagreement of the nodes. Each
    node computes its gradient at parameters that have all of its own rests in them, and nothing of its peers' newest
    steps. What fails: gradients at the mean itself, which do not see the node's own newest steps. Part of the way costs
    little of that, and no byte, because the node holds a copy of each peer already (docs/log/decentralized.md).

    x, each of peers, out: float32 [parameters]. part: 0 to 1.
    """
    each = part / (1 + len(peers))
    torch.mul(x, 1 - each * len(peers), out=out)
    for peer in peers:
        out.add_(peer, alpha=each)
    return out


class Copies:
    """The edges of a node, and how far it mixes.

    gamma: γ, the fraction of the way to the peers' copies, above 0 and at most 1. Raises ConfigError if it is not.
    bounds: how far a peer may move the node; by default as far as it likes.
    """

    def __init__(self, layout: TileLayout, gamma: float = 1.0, bounds: MixBounds | None = None) -> None:
        if not 0 < gamma <= 1:
            raise ConfigError(f"gamma must be above 0 and at most 1; it is {gamma:g}")
        self._layout = layout
        self._gamma = gamma
        self._bounds = bounds
        self.edges: dict[int, Edge] = {}

    def join(self, peer: int, start: Tensor | None, device: torch.device | str = "cpu", base: int = 0) -> Edge:
        """Begin an edge; see `Edge`. An older edge with this peer is forgotten."""
        self.edges[peer] = Edge(self._layout, start, torch.device(device), base)
        return self.edges[peer]

    def leave(self, peer: int) -> None:
        self.edges.pop(peer, None)
        if self._bounds is not None:
            self._bounds.forget(peer)

    def pull(self, x: Tensor, part: float, iteration: int, out: Tensor) -> None:
        """See `pull` of this module. The same edges give the same bits, whatever their order in memory."""
        copies = [edge.theirs.flat for _, edge in sorted(self.edges.items()) if edge.knows_peer(iteration)]
        bounds = self._bounds
        pull(x, copies if bounds is None else [bounds.clipped_copy(x, copy) for copy in copies], part, out)

    def mix(self, x: Tensor, turns: Iterable[Turn], weight: Callable[[Turn], float]) -> int:
        """x ← x + Σ γ·w·(theirs − own) over these turns, in place. Returns the number of turns that were mixed. Raises
        PayloadError for a peer that cannot be read, or is too far away (see `MixBounds`).

        x: float32 [layout.parameters]. weight: of a turn's edge, in the iteration of the turn; 0 if the turn is void.
        Both ends compute the same products with opposite signs.
        """
        mixed = 0
        for turn in turns:
            factor, edge, when = self._gamma * weight(turn), self.edges[turn.peer], (turn.topology, turn.iteration)
            difference = edge.difference(when)
            if difference is not None and factor:
                if self._bounds is not None:
                    self._bounds.clip_(turn.peer, difference)
                x.add_(difference.mul_(factor))
                mixed += 1
        return mixed
