"""Holds the parameters pulled towards the peers' copies from one step to the next, where gradients are computed.

The rank's own parameters wait meanwhile. They are back before the optimizer steps, and wherever else the rank's own
count: in messages, averages and measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from thinwire.gossip.compressed import CompressedCodec, EdgeCodec
from thinwire.gossip.flat import FlatLayout
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.copies import pull


class Pulled:
    """part: of the way to the mean of the rank and its peers; 0: nothing is pulled, and no memory taken."""

    def __init__(self, layout: FlatLayout, codec: CompressedCodec | None, part: float) -> None:
        self._layout = layout
        self._codec = codec
        self._part = part
        self._buffers: list[Tensor] = []
        self.own: Tensor | None = None
        """The rank's own parameters, uint8 [layout.bytes], while those of the model are pulled."""

    def begin(self, left_out: Sequence[int]) -> None:
        """Pull the parameters, from the rank's own. left_out: peers whose copies are old."""
        if not self._part or self._codec is None:
            return
        if not self._buffers:
            self._buffers = [self._layout.empty(), self._layout.empty()]
        own, at = self._buffers
        self._layout.read(own)
        x, out = (self._layout.values(buffer)[0] for buffer in (own, at))
        pull(x, self._codec.copies_of_peers(left_out), self._part, out)
        self._layout.write(at)
        self.own = own

    def end(self) -> None:
        """Give the model the rank's own parameters, if others are there."""
        self.show_own()
        self.own = None

    def show_own(self) -> None:
        """The same for a moment: the caller puts back what was there."""
        if self.own is not None:
            self._layout.write(self.own)

    def load(self, own: Tensor | None) -> None:
        """Go on from `own` of a saved rank, whose pulled parameters the model has."""
        self.own = None if own is None else own.to(self._layout.device).clone()


def pulled_of(part: float, codec: EdgeCodec | None, layout: FlatLayout) -> Pulled:
    """part: `gradient_pull`. codec: None over one-way edges. Raises ConfigError without copies of the peers."""
    if isinstance(codec, CompressedCodec):
        return Pulled(layout, codec, part)
    if part:
        raise ConfigError(
            "gradient_pull needs copies of the peers, which a codec of differences keeps: take bf16, int8 or "
            "sign, and edges with both ends"
        )
    return Pulled(layout, None, 0.0)
