"""Where a node computes its gradients: part of the way from its own parameters to the mean of them and its peers'.

The problem: a codec of one bit leaves a rest x − h on each edge, as large as the disagreement of the nodes. Each node
computes its gradient at parameters that have all of its own rests in them, and nothing of its peers' newest steps.

What fails: gradients at the mean itself, which are nearer to the mean of all nodes, but do not see the node's own
newest steps. The loss then rises as with stale gradients. Part of the way costs little of that, and no byte, because
the node holds a copy of each peer already (docs/log/decentralized.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pull(x: Tensor, peers: Sequence[Tensor], part: float, out: Tensor) -> Tensor:
    """out ← x + part·(m − x), with m the mean of x and the peers' copies. Returns out.

    x, each of peers, out: float32 [parameters]. part: 0 to 1.
    """
    each = part / (1 + len(peers))
    torch.mul(x, 1 - each * len(peers), out=out)
    for peer in peers:
        out.add_(peer, alpha=each)
    return out
