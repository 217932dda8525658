"""The settings of a member, and all that it holds as it is saved."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from thinwire_proto.gossip.peer_wire import NUMBER_MAX


@dataclass(frozen=True)
class MemberSettings:
    """codec, gamma, slack and patience_s: see `thinwire_proto.contract.exchanges.gossip`. iterations: of the run.
    is_bounded: whether a peer may move the node no further than `MixBounds` says; then call `Member.stepped` after
    each step."""

    codec: str
    gamma: float
    slack: int
    patience_s: float
    iterations: int = NUMBER_MAX
    is_bounded: bool = False


@dataclass(frozen=True)
class MemberState:
    """All that a member holds. tensors: by name, not cloned."""

    numbers: bytes
    tensors: dict[str, Tensor]
