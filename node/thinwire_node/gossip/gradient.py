"""The gradient of an iteration of gossip: the mean over its samples, summed up by micro-batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_node.training.compute import Compute
from thinwire_node.training.failures import NotFinite
from thinwire_node.training.gradient_receiver import Tensors, add_gradient
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import Batch, DataSource


@dataclass(frozen=True)
class Gradient:
    """The mean gradient of an iteration. flat: float32 [parameters], the caller's until the next sum begins. loss: nats
    per token. dropped: micro-batches whose loss or gradient was not finite, and which are in neither."""

    flat: Tensor
    samples: int
    loss: float
    dropped: int
    compute_s: float


class GradientSum:
    """Sums gradients. One thread calls it, but for `interrupt`.

    x: the node's parameters, whose held-out loss is measured. at: the parameters at which gradients are computed; by
    default x. Both are float32 [layout.parameters] on the CPU, in the manifest's order, and may change in place between
    two sums."""

    def __init__(
        self, layout: TileLayout, data: DataSource, compute: Compute, x: Tensor, at: Tensor | None = None
    ) -> None:
        self._data = data
        self._compute = compute
        self._sum = torch.zeros(layout.parameters)
        self._x = named_views(layout, x)
        self._at = self._x if at is None else named_views(layout, at)
        self._sums = named_views(layout, self._sum)
        self._is_in_place = False
        self.begin()

    def begin(self) -> None:
        """Start the sum of an iteration, at the parameters as they are now."""
        if not self._is_in_place:
            self._compute.use(self._at)
            self._is_in_place = self._compute.device.type == "cpu"
        self._dropped, self._compute_s = 0, 0.0
        self._clear()

    def _clear(self) -> None:
        self._sum.zero_()
        self._samples, self._weight, self._loss_sum = 0, 0, 0.0

    def interrupt(self) -> None:
        """Abort the running micro-batch and every later one. May be called from any thread."""
        self._compute.interrupt()

    def add(self, positions: Sequence[int]) -> None:
        """Add the gradient of the samples at these positions. Raises Interrupted, and BlobMissing if the data are not
        here; then nothing was added, unless the exception says that it spoils the sum. Raises TooLittleMemory."""
        began = time.perf_counter()
        try:
            self._compute.micro_batch.in_pieces(self._data.batch(positions), self._sums, self._add)
        except NotFinite as error:
            self._dropped += 1
            if error.spoils:
                self._clear()
        self._compute_s += time.perf_counter() - began

    def held_out_loss(self, name: str, samples: Sequence[int]) -> float:
        """The mean loss at x on samples of the held-out set `name`, in float32. Raises Interrupted, and BlobMissing if
        the data are not here."""
        return self._compute.loss(self._x, self._data.held_out(name, samples))

    def _add(self, batch: Batch, sums: Tensors | None) -> None:
        assert sums is not None
        weight = self._compute.weight(batch)
        if self._compute.device.type == "cpu":
            loss = self._compute.add_gradients(batch, sums, weight)
        else:
            loss, gradients = self._compute.gradients(batch)
            add_gradient(sums, gradients, weight)
        self._samples += len(batch[0])
        self._weight += weight
        self._loss_sum += loss.item() * weight

    def mean(self) -> Gradient:
        """The mean of what was added since `begin`; 0 if nothing was finite."""
        weight = max(1, self._weight)
        self._sum.div_(weight)
        return Gradient(self._sum, self._samples, self._loss_sum / weight, self._dropped, self._compute_s)


def named_views(layout: TileLayout, flat: Tensor) -> Mapping[str, Tensor]:
    """The tensors of the manifest as views of a flat tensor [layout.parameters], by name."""
    sizes = [tensor.rows * tensor.columns for tensor in layout.tensors]
    parts = torch.split(flat, sizes)
    return {tensor.name: part.view(tensor.shape) for tensor, part in zip(layout.tensors, parts, strict=True)}
