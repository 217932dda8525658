"""Recomputes the gradients of two leases on the replica of that step, and compares two contributions with them.

It takes the time of one training round of two nodes, at most. See `trust.audit`.

The problem: two gradients of all parameters are twice the memory of the replica. The sketch: the first is kept in
bfloat16, whose rounding is far below the noise of an audit. Each tensor of the second is compared as soon as the
backward pass has made it, at the components that the audit looks at, and dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from thinwire_coordinator.star.trust.audit import Floats, Subject, audited, components_of
from thinwire_coordinator.star.trust.ballots import Ballot, Components
from thinwire_coordinator.star.trust.evidence import Audited
from thinwire_proto.blobs import BlobMissing, Blobs
from thinwire_proto.contract import TILE_EDGE, Contract
from thinwire_proto.exact.decode import TILE_BATCH_CPU
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TensorTiles, TileLayout
from thinwire_proto.exact.transform import forward
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import DataSource, task_of

SAMPLES_MAX = 8
"""Samples of each lease that an audit computes."""
OPERATIONS_MAX = 2e12
"""Operations of an audit; about 40 seconds of a core that does 50 billion a second. Fewer samples are computed to keep
it, but at least one of each lease."""
BATCH = 4
TIME_SHARE = 0.02
"""Share of the time that audits may compute."""


def samples_of(contract: Contract, parameters: int) -> int:
    """Samples of each lease that an audit computes at most, BATCH of them at a time."""
    operations = 2 * 6 * parameters * contract.model.context  # of a sample of each lease, there and back
    return max(1, min(SAMPLES_MAX, int(OPERATIONS_MAX / operations)))


class Auditor:
    """Audits two contributions at a time. One thread calls `audit`.

    The model is built for the first audit, so a coordinator that never audits does not pay for it.
    """

    def __init__(self, contract: Contract, data: DataSource, blobs: Blobs) -> None:
        self._contract = contract
        self._data = data
        self._blobs = blobs
        self._model: Stateless | None = None
        self._stopped = threading.Event()
        self._not_before = -math.inf

    def due(self, now: float) -> bool:
        """Whether the last audit is so long ago that the next one keeps TIME_SHARE. now: seconds, monotonic."""
        return now >= self._not_before

    def stop(self) -> None:
        """Abort the audit that runs and any later one. Any thread may call this."""
        self._stopped.set()

    def audit(
        self, replica: Replica, own: Subject, other: Subject, references: Sequence[Ballot]
    ) -> tuple[Audited, ...]:
        """Audit two contributions. Returns nothing if it was stopped or the data are not here.

        replica: a copy, at the step that the gradients are from. references: votes of nodes with neither lease.
        """
        began, layout = time.monotonic(), replica.layout
        components = components_of([own.ballot, other.ballot, *references], layout.components)
        difference = Difference(components, layout)
        try:
            count = min(len(own.positions), len(other.positions), samples_of(self._contract, layout.parameters))
            self._gradient(replica, own.positions[:count], difference.take_first)
            self._gradient(replica, other.positions[:count], difference.take_second)
        except (BlobMissing, _Stopped):
            return ()
        finally:
            now = time.monotonic()
            self._not_before = now + (now - began) / TIME_SHARE
        return audited(own.ballot, other.ballot, references, components, difference.values)

    def _gradient(self, replica: Replica, positions: Sequence[int], use: Callable[[TensorTiles, Tensor], None]) -> None:
        """Compute the gradient of a lease, and pass each tensor's to `use` as soon as it is complete."""
        if self._model is None:
            self._model = Stateless(task_of(self._contract.model).model("cpu", self._blobs))
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in replica.tensors.items()}
        tensors = {tensor.name: tensor for tensor in replica.layout.tensors}
        is_last = False

        def added(name: str, leaf: Tensor) -> None:
            replica.give_back(leaf)
            if is_last:
                complete(name)

        def complete(name: str) -> None:
            tensor, leaf = tensors.pop(name), leaves[name]
            use(tensor, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
            leaf.grad = None

        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(partial(added, name))  # type: ignore[no-untyped-call]
        try:
            for start in range(0, len(positions), BATCH):
                if self._stopped.is_set():
                    raise _Stopped
                part = positions[start : start + BATCH]
                is_last = start + BATCH >= len(positions)
                batch = self._data.batch(part)
                with replica.in_use():
                    torch.autograd.backward(self._model.loss(leaves, batch) * self._model.weight(batch))
            for name in list(tensors):  # those that these samples do not use
                complete(name)
        finally:
            leaves.clear()  # a leaf's hook leads back to it past Python's collector, and the replica's file would stay


class _Stopped(Exception):
    """The audit was aborted."""


class Difference:
    """The difference of two gradients, each parameter divided by the root mean square of both, at some components.

    components: ascending, int64 [n]. `values`: float32 [n], complete once both gradients are taken. They come tensor by
    tensor, in any order; of each tensor, the first one comes before the second.
    """

    def __init__(self, components: Components, layout: TileLayout) -> None:
        self.values: Floats = np.zeros(len(components), np.float32)
        self._components = components
        self._layout = layout
        self._first: dict[str, Tensor] = {}

    def take_first(self, tensor: TensorTiles, gradient: Tensor) -> None:
        self._first[tensor.name] = gradient.bfloat16()

    @torch.no_grad()
    def take_second(self, tensor: TensorTiles, gradient: Tensor) -> None:
        difference = self._first.pop(tensor.name).float()
        root = (difference.square() + gradient.square()).sqrt_().clamp_(min=torch.finfo(torch.float32).tiny)
        difference.sub_(gradient).div_(root)
        del root
        for tiles, begin in _tiles(difference, tensor, self._layout):
            coefficients = forward(tiles).reshape(-1).numpy()
            start, end = np.searchsorted(self._components, (begin, begin + len(coefficients)))
            self.values[start:end] = coefficients[self._components[start:end] - begin]


def _tiles(values: Tensor, tensor: TensorTiles, layout: TileLayout) -> Iterator[tuple[Tensor, int]]:
    """A tensor as tiles, a batch at a time: (float32 [n, 64, 64] or [n, 64], the first component)."""
    before = 0 if tensor.is_matrix else layout.matrix_tiles
    end = tensor.first_tile + tensor.tiles
    for first in range(tensor.first_tile, end, TILE_BATCH_CPU):
        stop = min(first + TILE_BATCH_CPU, end)
        tiles = torch.zeros((stop - first, *(2 if tensor.is_matrix else 1) * (TILE_EDGE,)))
        for part in layout.parts(range(before + first, before + stop)):
            here = replace(part, tiles=slice(part.tiles.start - first, part.tiles.stop - first))
            for band, tile in here.pieces(here.band(values), tiles):
                tile.copy_(band)
        yield tiles, layout.first_component(before + first)
