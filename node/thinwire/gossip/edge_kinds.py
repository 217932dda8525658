"""Makes what an edge carries, as the settings of `Gossip` say: codecs, one-way turns, and pulled gradients."""

from __future__ import annotations

from thinwire.gossip.compressed import CompressedCodec
from thinwire.gossip.consensus_control import ConsensusControl
from thinwire.gossip.edge_codec import DenseCodec, EdgeCodec
from thinwire.gossip.flat import FlatLayout
from thinwire.gossip.pulled import Pulled
from thinwire.gossip.pushed import PushedTurns
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.consensus import LEVELS
from thinwire_proto.gossip.topology import Topology

DENSE = "dense"


def codec_of(name: str, layout: FlatLayout, control: ConsensusControl | None) -> EdgeCodec:
    """The codec of edges with both ends. control: chooses among several."""
    if control is not None:
        codec = CompressedCodec(layout, *dict.fromkeys(level.codec for level in LEVELS))
        codec.used = control.level.codec
        return codec
    return DenseCodec(layout) if name == DENSE else CompressedCodec(layout, name)


def one_way_turns(topology: Topology, rank: int, codec: str, layout: FlatLayout) -> PushedTurns:
    """The turns of a rank over one-way edges."""
    targets = {peer for mixing in topology.mixings for peer in mixing.targets(rank)}
    sources = {peer for mixing in topology.mixings for peer in mixing.sources(rank)}
    return PushedTurns(layout, codec, targets=targets, sources=sources)


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
