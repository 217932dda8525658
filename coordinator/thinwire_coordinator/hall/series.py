"""A run's figures by step, in memory that does not grow with the number of steps.

If every step were kept, the coordinator's memory, the message to a browser and the line on its screen would grow with
the run. If only the newest steps were kept, the beginning would be lost, which is where the loss falls. Steps are
therefore kept in buckets of `stride` consecutive steps each. When there are too many buckets, the stride doubles and
pairs of neighbours are merged: sums are added, minima and maxima are kept, and other values are those of the newest
step. A bucket always covers the steps from n · stride to (n + 1) · stride - 1, so its content does not depend on when
it was created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

BUCKETS_MAX = 2048


@dataclass(slots=True)
class Bucket:
    """One sealed step, or several consecutive ones. `losses` is the number of steps with a loss."""

    step: int  # the newest step, counted from 1: the number of steps sealed by then
    tokens: int = 0  # a sum, like all byte counts
    update_bytes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    dense_bytes: int = 0
    nodes: int = 0  # counted in the newest step
    at_s: float | None = None  # when the newest step was sealed, since the start of the term; None: in an earlier term
    loss_sum: float = 0.0
    losses: int = 0
    loss_min: float = math.inf
    loss_max: float = -math.inf

    @property
    def loss(self) -> float | None:
        """The mean loss over the steps of the bucket that have one."""
        return self.loss_sum / self.losses if self.losses else None

    def take_in(self, later: Bucket) -> None:
        self.step, self.nodes, self.at_s = later.step, later.nodes, later.at_s
        self.tokens += later.tokens
        self.update_bytes += later.update_bytes
        self.bytes_up += later.bytes_up
        self.bytes_down += later.bytes_down
        self.dense_bytes += later.dense_bytes
        self.loss_sum += later.loss_sum
        self.losses += later.losses
        self.loss_min = min(self.loss_min, later.loss_min)
        self.loss_max = max(self.loss_max, later.loss_max)


def with_loss(step: int, loss: float) -> Bucket:
    """A bucket for one step with only a loss, or without any if the loss is not finite."""
    bucket = Bucket(step)
    add_loss(bucket, loss)
    return bucket


def add_loss(bucket: Bucket, loss: float, losses: Sequence[float] = ()) -> None:
    """Set the loss of a bucket. losses: of single nodes, all finite, if they are known."""
    if math.isfinite(loss):
        bucket.loss_sum, bucket.losses = loss, 1
        bucket.loss_min, bucket.loss_max = min(losses, default=loss), max(losses, default=loss)


class Series:
    """A bounded series of buckets. Steps must be added in ascending order."""

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets_max = buckets_max
        self.stride = 1
        self._buckets: dict[int, Bucket] = {}  # by step // stride, ascending

    def add(self, bucket: Bucket) -> None:
        """Append a bucket. The series takes ownership of it and may change it."""
        _put(self._buckets, bucket.step // self.stride, bucket)
        while len(self._buckets) > self._buckets_max:
            self.stride *= 2
            self._buckets = _grouped(self._buckets.values(), self.stride)

    def prepend(self, earlier: Series) -> None:
        later, self._buckets = list(self._buckets.values()), {}
        self.stride = max(self.stride, earlier.stride)
        for bucket in [*earlier._buckets.values(), *later]:
            self.add(bucket)

    def points(self, points_max: int) -> list[Bucket]:
        """At most `points_max` buckets. The caller must not change them."""
        stride = self.stride
        while len({bucket.step // stride for bucket in self._buckets.values()}) > points_max:
            stride *= 2
        return list(_grouped(self._buckets.values(), stride).values())


def _grouped(buckets: Iterable[Bucket], stride: int) -> dict[int, Bucket]:
    found: dict[int, Bucket] = {}
    for bucket in buckets:
        _put(found, bucket.step // stride, replace(bucket))
    return found


def _put(buckets: dict[int, Bucket], key: int, bucket: Bucket) -> None:
    if key in buckets:
        buckets[key].take_in(bucket)
    else:
        buckets[key] = bucket


ReadRow = Callable[[int, int, int, list[tuple[str, int]]], Bucket]
"""Makes the bucket of a row from its number, the bytes of its body, its tokens, and its nodes with their samples."""
