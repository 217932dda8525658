"""The messages of an edge, behind one interface: the parameters themselves, or differences from a public copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from thinwire.gossip.flat import FlatLayout

DENSE = "dense"


class EdgeCodec(Protocol):
    """Turns parameters into messages, and messages into what mixing needs.

    Mixing moves x by the weight of the edge times (theirs − own): what the edge knows of the peer, and of this rank, in
    the same iteration. Both ends hold the same two, so they move by opposite amounts, and the mean stays where it is.
    """

    message_bytes_max: int

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """(own, the message) for a peer. x: this rank's parameters, uint8 [layout.bytes], as own is; the codec changes
        neither afterwards. Each message reaches the peer, or the peer is gone."""

    def decode(self, peer: int, message: Tensor) -> Tensor:
        """theirs, uint8 [layout.bytes]; the caller may change it. Called for each message of a peer, in order, also if
        it is not mixed. The message itself stays as it is until theirs was used."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class DenseCodec:
    """The parameters themselves: 4 bytes a float32 parameter."""

    def __init__(self, layout: FlatLayout) -> None:
        self._device = layout.device
        self.message_bytes_max = layout.bytes

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def decode(self, peer: int, message: Tensor) -> Tensor:
        return message.to(self._device)

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
