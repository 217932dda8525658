"""The trained parameters as one run of bytes, to be sent in one message: by dtype, each parameter in its shape.

Of sharded parameters, the part that this rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.placement import local
from thinwire_proto.errors import ConfigError

ALIGNED_BYTES = 64
"""Each dtype begins at a multiple of it."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def overwrite(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor of the same shape. Unlike `copy_`, also into a buffer that was expanded: elements that
    share memory have equal values."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, values = tensor.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    tensor.detach().copy_(values)


@dataclass(frozen=True)
class Bucket:
    """All parameters of one dtype. first_byte: where they begin in the message."""

    dtype: torch.dtype
    parameters: tuple[Tensor, ...]
    first_byte: int

    @property
    def sizes(self) -> list[int]:
        return [held.numel() for held in self.held]

    @property
    def held(self) -> list[Tensor]:
        return held_of(self.parameters)

    @property
    def elements(self) -> int:
        return sum(self.sizes)


def held_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """This rank's part of each, without gradients. To be asked for each time, because FSDP2 may replace a shard."""
    return [local(parameter.detach()) for parameter in parameters]


class FlatLayout:
    """Where each parameter stands in a buffer, uint8 [bytes].

    Raises ConfigError if a parameter is not a float, or if the parameters are on different devices."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.device = parameters[0].device if parameters else torch.device("cpu")
        if others := {parameter.device for parameter in parameters} - {self.device}:
            raise ConfigError(
                f"Gossip needs all trained parameters of a rank on one device; they are on {self.device} and "
                f"{', '.join(map(str, others))}"
            )
        if unknown := {str(parameter.dtype) for parameter in parameters if parameter.dtype not in DTYPES}:
            raise ConfigError(f"Gossip mixes parameters that are floats; some are {', '.join(sorted(unknown))}")
        self._parameters = parameters
        self.buckets: list[Bucket] = []
        end = 0
        for dtype in DTYPES:
            if chosen := tuple(parameter for parameter in parameters if parameter.dtype == dtype):
                bucket = Bucket(dtype, chosen, end)
                self.buckets.append(bucket)
                end += -(-bucket.elements * dtype.itemsize // ALIGNED_BYTES) * ALIGNED_BYTES
        self.bytes = end

    @property
    def held(self) -> list[Tensor]:
        """This rank's part of each parameter, in their order."""
        return held_of(self._parameters)

    def empty(self) -> Tensor:
        return torch.zeros(self.bytes, dtype=torch.uint8, device=self.device)

    def host_buffers(self, size: int) -> Buffers:
        """Buffers in host memory, for messages to and from the parameters' device."""
        return Buffers(size, device=torch.device("cpu"), pinned=self.device.type == "cuda")

    def values(self, buffer: Tensor) -> list[Tensor]:
        """The elements of each bucket in a buffer, one-dimensional, without a copy."""
        return [
            buffer[bucket.first_byte : bucket.first_byte + bucket.elements * bucket.dtype.itemsize].view(bucket.dtype)
            for bucket in self.buckets
        ]

    def read(self, buffer: Tensor) -> None:
        for bucket, views in zip(self.buckets, self._views(buffer), strict=True):
            torch._foreach_copy_(views, bucket.held)

    def write(self, buffer: Tensor) -> None:
        for bucket, views in zip(self.buckets, self._views(buffer), strict=True):
            torch._foreach_copy_(bucket.held, views)

    def add(self, buffer: Tensor, factor: float = 1.0) -> None:
        """Add a buffer, times the factor, to the parameters."""
        for bucket, views in zip(self.buckets, self._views(buffer), strict=True):
            torch._foreach_add_(bucket.held, views, alpha=factor)

    def _views(self, buffer: Tensor) -> list[list[Tensor]]:
        """Each parameter's part of a buffer, in its shape."""
        return [
            [part.view(held.shape) for part, held in zip(torch.split(values, bucket.sizes), bucket.held, strict=True)]
            for bucket, values in zip(self.buckets, self.values(buffer), strict=True)
        ]


class Buffers:
    """Buffers of one size that are used again, because new pages cost more than the copy into them."""

    def __init__(self, size: int, *, device: torch.device, pinned: bool = False) -> None:
        self._size = size
        self._device = device
        self._pinned = pinned
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        try:
            return self._free.pop()
        except IndexError:
            return torch.zeros(self._size, dtype=torch.uint8, device=self._device, pin_memory=self._pinned)

    def give(self, buffer: Tensor) -> None:
        self._free.append(buffer)
