"""Recomputes the gradients of two leases on the replica of that step, and compares two contributions with them.

It takes the time of one training round of two nodes, at most, and memory for two gradients. See `trust.audit`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_coordinator.trust.audit import Floats, Subject, audited, components_of
from thinwire_coordinator.trust.ballots import Ballot, Components
from thinwire_coordinator.trust.evidence import Audited
from thinwire_proto.blobs import BlobMissing, Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.exact.decode import TILE_BATCH_CPU
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.transform import forward
from thinwire_proto.task import DataSource, Stateless, task_of

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
        began = time.monotonic()
        try:
            count = min(len(own.positions), len(other.positions), samples_of(self._contract, replica.layout.parameters))
            first = self._gradient(replica, own.positions[:count])
            second = self._gradient(replica, other.positions[:count])
        except (BlobMissing, _Stopped):
            return ()
        finally:
            now = time.monotonic()
            self._not_before = now + (now - began) / TIME_SHARE
        components = components_of([own.ballot, other.ballot, *references], replica.layout.components)
        difference = differing(first, second, components, replica.layout, self._contract.demo.transform)
        return audited(own.ballot, other.ballot, references, components, difference)

    def _gradient(self, replica: Replica, positions: Sequence[int]) -> dict[str, Tensor]:
        if self._model is None:
            self._model = Stateless(task_of(self._contract.model).model("cpu", self._blobs))
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in replica.tensors.items()}
        for leaf in leaves.values():  # gradients are added up in place, so there is no third one of all parameters
            leaf.register_post_accumulate_grad_hook(replica.give_back)  # type: ignore[no-untyped-call]
        for start in range(0, len(positions), BATCH):
            if self._stopped.is_set():
                raise _Stopped
            part = positions[start : start + BATCH]
            batch = self._data.batch(part)
            with replica.in_use():
                torch.autograd.backward(self._model.loss(leaves, batch) * len(part))
        return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


class _Stopped(Exception):
    """The audit was aborted."""


@torch.no_grad()
def differing(
    first: dict[str, Tensor], second: dict[str, Tensor], components: Components, layout: TileLayout, transform: str
) -> Floats:
    """The difference of two gradients, each parameter divided by the root mean square of both, at these components.

    first, second: by name; both are used up. components: ascending, int64 [n]. Returns float32 [n].
    """
    for name, gradient in first.items():
        root = (gradient.square() + second[name].square()).sqrt_().clamp_(min=torch.finfo(torch.float32).tiny)
        gradient.sub_(second.pop(name)).div_(root)
    found = np.zeros(len(components), np.float32)
    start = 0
    for tiles, begin in _tiles(first, layout):
        end = int(np.searchsorted(components, begin + tiles.numel()))
        coefficients = forward(tiles, transform).reshape(-1).numpy()
        found[start:end] = coefficients[components[start:end] - begin]
        start = end
    return found


def _tiles(tensors: Mapping[str, Tensor], layout: TileLayout) -> Iterator[tuple[Tensor, int]]:
    """Tensors as tiles, a batch at a time: (float32 [n, 64, 64] or [n, 64], the first component)."""
    begin = 0
    for batch in layout.batches(TILE_BATCH_CPU):
        count = batch.tiles.stop - batch.tiles.start
        tiles = torch.zeros((count, 64, 64) if batch.is_matrix else (count, 64))
        for part in batch.parts:
            for band, tile in part.pieces(part.band(tensors[part.tensor.name]), tiles):
                tile.copy_(band)
        yield tiles, begin
        begin += tiles.numel()
