"""Gossip: each node steps by itself and mixes with its neighbours on a topology (docs/decentralized.md).

The time is that of `iteration_s`, with the message time of each edge while all edges of the iteration are in use. A
codec's bytes are those of one message, and its arithmetic is that of encoding and decoding one. With slack, several
messages are on their way at once, so a step also takes at least as long as the busiest line needs for its messages, on
average over a cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from thinwire_planner.methods.method import METHODS, Forecast, Setting, Variant
from thinwire_planner.methods.star import LOCAL_MUON, tokens_of
from thinwire_planner.timing.link import Floats
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip import push_sum
from thinwire_proto.gossip.topology import Arcs, Layout, cycle_of, make_topology, topology_names

FAMILY = "gossip"
DENSE_NODES_MAX = 128
"""With more nodes, a complete graph is left out: each node would send to more than this many."""
SLACKS = (0, 1, 2)
PREFERRED = ("complete", "alternating-exponential-ring", "one-peer-exponential", "random-regular", "matching")
"""Topologies by how well a cycle of them mixes (docs/decentralized.md)."""


@dataclass(frozen=True)
class CodecBytes:
    """A codec, by the bytes of a message, and the seconds of encoding and decoding it, for each parameter."""

    name: str
    bytes_a_parameter: float
    coding_s_a_parameter: float
    tokens: float = 1.01
    """So many times those of `local_muon`, beside which it ran in one cell alone: steps of Muon, 16 nodes of one
    sample, on MEASURED_ON. Here of every number exchanged."""
    is_rounded: bool = False
    """Whether messages lose much, so that the figure holds only where it was measured."""


MEASURED_ON = "one-peer-exponential"
MEASURED_PARAMETERS = 8.4e6
CODECS = (
    CodecBytes("dense", 4.0, 28e-3 / MEASURED_PARAMETERS),
    CodecBytes("bf16", 2.0, 10e-3 / MEASURED_PARAMETERS),
    CodecBytes("int8", 1.0, 33e-3 / MEASURED_PARAMETERS),
    CodecBytes("one bit", 0.126, 30e-3 / MEASURED_PARAMETERS, 1.03, is_rounded=True),
)
"""As measured on two threads (docs/log/decentralized.md). One bit is the codec `sign`, with pulled gradients."""


PUSHING_S_A_PARAMETER = 0.26 / MEASURED_PARAMETERS
"""Over one-way edges: dividing the mass, encoding, decoding and adding, on one thread (docs/log/decentralized.md)."""


def codec_of(name: str) -> CodecBytes:
    """The bytes and seconds of a contract's codec. Raises ConfigError."""
    for codec in CODECS:
        if codec.name == ("one bit" if name == "sign" else name):
            return codec
    raise ConfigError(f"planner: the bytes of the codec {name!r} are not known")


@lru_cache(maxsize=64)
def arcs_of(topology: str, nodes: int, per_host: int, seed: int) -> tuple[Arcs, ...]:
    """The cycle of a topology, kept because making one takes longer than a prediction. Raises ConfigError if it cannot
    join so many nodes."""
    if topology == "complete" and nodes > DENSE_NODES_MAX:
        raise ConfigError(f"planner: a complete graph of more than {DENSE_NODES_MAX} nodes is not considered")
    return cycle_of(make_topology(topology, Layout(nodes, per_host, seed)))


def gossip_variant(
    topology: str, codec: CodecBytes, *, is_overlapped: bool = True, slack: int = 0, is_one_way: bool = False
) -> Variant:
    name, position = f"gossip, {topology}, {codec.name}", len(PREFERRED)
    if topology in PREFERRED:
        position = PREFERRED.index(topology)
    in_turn = f"{name}, not overlapped"
    late = f", slack {slack}" if slack else ""
    forecast = partial(
        _forecast, topology=topology, codec=codec, is_overlapped=is_overlapped, slack=slack, is_one_way=is_one_way
    )
    is_measured = topology == MEASURED_ON and not slack
    elsewhere = f"what it learns with {codec.name} was measured on {MEASURED_ON} without slack alone"
    return Variant(
        f"{name}{late}" if is_overlapped else in_turn,
        FAMILY,
        forecast,
        is_overlapped,
        looseness=2.0 + 0.1 * position + 0.01 * codec.bytes_a_parameter + slack,
        without_overlap=in_turn,
        caution=elsewhere if codec.is_rounded and not is_measured else "",
        slack=slack,
        is_simulated=True,
    )


def _forecast(
    setting: Setting, *, topology: str, codec: CodecBytes, is_overlapped: bool, slack: int, is_one_way: bool
) -> Forecast:
    network = setting.network
    cycle = arcs_of(topology, network.nodes, network.per_host, setting.seed)
    size = codec.bytes_a_parameter * setting.parameters
    idle_s = setting.mean_s * len(cycle)  # an edge is used once a cycle
    transfers = [network.edges_s(arcs.senders, arcs.receivers, size, idle_s) for arcs in cycle]
    own = setting.parameters * (PUSHING_S_A_PARAMETER if is_one_way else codec.coding_s_a_parameter)
    computing = setting.compute.draw(setting.seed, iterations_for(cycle, setting.iterations_max), setting.speeds) + own
    seconds = iteration_s(cycle, transfers, computing, slack=slack, is_overlapped=is_overlapped)
    busy = sum(network.busy_s(arcs.senders, arcs.receivers, size) for arcs in cycle) / len(cycle)
    longest = [float(times.max()) for times in transfers if len(times)]
    sent = sum(len(arcs.senders) for arcs in cycle) / len(cycle) / network.nodes
    return Forecast(
        max(seconds, float(np.max(busy))),
        2 * sent * codec.bytes_a_parameter,
        (("computing", setting.mean_s + own), ("message", float(np.mean(longest)) if longest else 0.0)),
        codec.tokens * tokens_of(LOCAL_MUON, 0, setting.nodes),
    )


@METHODS.register("gossip")
def gossip(setting: Setting) -> Iterator[Variant]:
    nodes, per_host = setting.nodes, setting.network.per_host
    if nodes < 2:
        return
    one_way = topology_names(directed=True)
    for topology in topology_names():
        try:
            arcs_of(topology, nodes, per_host, setting.seed)
        except ConfigError:
            continue  # the topology cannot join so many nodes
        is_one_way = topology in one_way
        for codec in CODECS:
            if is_one_way and codec.name not in push_sum.CODECS:
                continue
            yield gossip_variant(topology, codec, is_overlapped=False, is_one_way=is_one_way)
            for slack in SLACKS:
                yield gossip_variant(topology, codec, slack=slack, is_one_way=is_one_way)


WARMUP_PART = 0.25
ITERATIONS_MIN = 48
WORK_MAX = 20_000_000
"""Largest number of edges that are gone through for one prediction, beyond the least number of iterations."""


def iterations_for(cycle: Sequence[Arcs], most: int) -> int:
    """The number of iterations of a prediction: fewer where there are many edges."""
    edges = sum(arcs.heard.size for arcs in cycle) / len(cycle)
    return int(min(most, max(ITERATIONS_MIN, WORK_MAX / edges, 4 * len(cycle))))


def iteration_s(
    cycle: Sequence[Arcs],
    transfers_s: Sequence[Floats],
    computing_s: Floats,
    *,
    slack: int = 0,
    is_overlapped: bool = True,
) -> float:
    """Mean seconds of an iteration in the long run, from the recurrence of when each node has finished it.

        overlapped      F_i(t) = max(F_i(t−1) + C_i(t), max_j F_j(t−1−slack) + t_ij)
        not overlapped  F_i(t) = max(F_i(t−1) + C_i(t), max_j F_j(t−1−slack) + C_j(t−slack) + t_ij)

    with j over the nodes that i hears in iteration t. Computing and exchange go on side by side in the first, and one
    after the other in the second. The maximum and the sum make this a linear recurrence in the max-plus algebra
    (Baccelli et al., Synchronization and Linearity, 1992), so F grows at one rate T = lim F/t for all nodes that hear
    of each other. With random C the limit is found by going through many iterations, of which the first are left out.
    cycle, transfers_s: the arcs of each iteration of the cycle, and the seconds of a message on each. computing_s:
    [iterations, nodes].
    """
    count, nodes = computing_s.shape
    finished = np.zeros(nodes)
    ready: deque[Floats] = deque(maxlen=slack + 1)
    """The times that messages are sent at, of this iteration and of the `slack` before it."""
    warm = int(WARMUP_PART * count)
    since = 0.0
    for iteration, own_s in enumerate(computing_s):
        if iteration == warm:
            since = float(finished.mean())
        arcs, transfer_s = cycle[iteration % len(cycle)], transfers_s[iteration % len(cycle)]
        computed = finished + own_s
        ready.append(finished if is_overlapped else computed)
        finished = computed
        if len(ready) > slack and len(arcs.senders):
            arrived = np.append(ready[0][arcs.senders] + transfer_s, -np.inf)
            finished = np.maximum(computed, arrived[arcs.heard].max(axis=1))
    return float((finished.mean() - since) / (count - warm))
