"""The port of the codecs that turn a difference of parameters into bytes, and their registry.

A codec need not be exact: what it drops stays in the difference between x and the copy, and is sent later. But both
ends add the decoded step to their copies, so `decode` must give the same bits on every machine and device. Two kinds of
arithmetic do: elementwise operations of IEEE 754, each rounded by itself, and integers that float32 holds exactly
(`thinwire_proto.exact.decode`).

A kind is a file that registers a class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.kinds import Kinds

VERSION = 1
"""The first byte of each body."""
Bytes = bytes | memoryview
STEP_MAX = 2.0**30
"""Largest magnitude of a decoded number. A copy cannot overflow before 2⁹⁷ messages."""


class Codec(ABC):
    """Encodes differences of the parameters of one layout.

    A difference is a float32 tensor [layout.parameters]: all tensors, flat, in the manifest's order.
    """

    bytes_max: int
    """Upper bound on the size of a body, from the layout alone."""

    def __init__(self, layout: TileLayout) -> None:
        self.layout = layout

    def encode(self, difference: Tensor) -> bytes:
        """The body. Does not change the difference. Raises LocalError if a number is not finite or too large."""
        if difference.dtype != torch.float32 or difference.shape != (self.layout.parameters,):
            raise LocalError(
                f"a difference is float32 [{self.layout.parameters}]; this is {difference.dtype} "
                f"{list(difference.shape)}"
            )
        with torch.no_grad():
            if not is_bounded(difference):
                raise LocalError(
                    f"the parameters differ from their copy by more than {STEP_MAX:g}, or are not finite: training has"
                    " diverged"
                )
            return b"".join([bytes([VERSION]), *self._encode(difference)])

    def decode(self, body: bytes, device: torch.device | str = "cpu") -> Tensor:
        """The step to add to a copy, float32 [layout.parameters], with the same bits on every device.

        Raises PayloadError for any body that `encode` could not have written, within the bounds' memory.
        """
        if len(body) > self.bytes_max:
            raise PayloadError(f"a body has at most {self.bytes_max} bytes; this has {len(body)}")
        if not body or body[0] != VERSION:
            raise PayloadError(f"this is not a body of version {VERSION}")
        with torch.no_grad():
            return self._decode(memoryview(body)[1:], torch.device(device))

    @abstractmethod
    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        """The parts of the body after the version."""

    @abstractmethod
    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        """See `decode`. body: without the version."""


_KINDS: Kinds[type[Codec]] = Kinds("codec", "thinwire_proto.gossip.codecs")
register_codec = _KINDS.register
"""A decorator for a class of `Codec`, with its name. Raises ConfigError if the name is taken."""


def codec_names() -> tuple[str, ...]:
    """The names of this project's kinds and of all that were registered, in alphabetical order."""
    return tuple(sorted(_KINDS.names()))


def make_codec(name: str, layout: TileLayout) -> Codec:
    """Make the codec of this name. Raises ConfigError if there is none."""
    kind = _KINDS.find(name)
    if kind is None:
        raise ConfigError(f"codec: there is no {name!r}; there are {', '.join(codec_names())}")
    return kind(layout)


def check_length(body: Bytes, expected: int) -> None:
    """Raise PayloadError unless the rest of a body has exactly this size."""
    if len(body) != expected:
        raise PayloadError(f"the difference takes {expected} bytes; there are {len(body)}")


def is_bounded(values: Tensor) -> bool:
    """Whether all numbers are finite, and within STEP_MAX."""
    if not values.numel():
        return True
    low, high = (float(bound) for bound in values.aminmax())  # both are NaN if any number is
    return low >= -STEP_MAX and high <= STEP_MAX


def tensors_of(flat: Tensor, layout: TileLayout) -> Iterator[Tensor]:
    """Views of the tensors in a flat buffer [layout.parameters], in the manifest's order and their shapes."""
    start = 0
    for tensor in layout.tensors:
        end = start + math.prod(tensor.shape)
        yield flat[start:end].view(tensor.shape)
        start = end
