"""Predicts the bytes of a contribution and of an update from the number of tiles and components.

The components of a tile are taken as drawn at random. Then the choice of k of them costs log2 C(size, k) bits and their
signs cost k; the codec writes 2% more (docs/performance.md, bits per component). Nodes choose independently, so an
update holds nearly the sum of what they choose. Nodes of a real run choose the same component more often, so a real
update is smaller. With `demo.update_levels`, an update takes the Huffman code of that sum in so many levels. With
`demo.vote_levels`, components are taken as normally distributed, and a contribution takes the Huffman code of their
levels. All nodes weigh the same: where some are slower, sums take more values, and an update has up to 30% more.
"""

from __future__ import annotations

import heapq
import math
from functools import reduce

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_proto.contract import TILE_EDGE, DemoSpec
from thinwire_proto.wire.whole_tiles import digits_of_a_byte

CODEC_OVERHEAD = 1.02
"""Bytes of the codec over the entropy of a choice, at k from 4 to 128 (docs/performance.md: 0.98 to 0.987 of the
floor)."""
CALL_BYTES = 200
"""Envelope of a contribution or an update: header, receipt and row, without the row's contributions."""
ROW_BYTES_A_NODE = 90
"""Size of a contribution's entry in a row: node, hash, weight and samples."""
NODES_ADDED_MAX = 1024
Shares = npt.NDArray[np.float64]
OTHER_BYTES_A_ROUND = 100
"""Announcements, probes and receipts, for each direction (37 and 10 in a small swarm on loopback)."""


def contribution_bytes(facts: ModelFacts, demo: DemoSpec) -> float:
    """Bytes that a node sends for its votes of a round."""
    if demo.vote_levels:
        bits = facts.components * _code_bits(_vote_shares(demo, 1.0))
    else:
        bits = CODEC_OVERHEAD * sum(tiles * _choice_bits(size, demo.k) for size, tiles in _tiles(facts))
    scales = facts.tiles if demo.magnitude == "tile" else 0
    return bits / 8 + scales + CALL_BYTES


def update_bytes(facts: ModelFacts, demo: DemoSpec, nodes: int) -> float:
    """Bytes of a round's update, of `nodes` nodes with equal weights."""
    bits = 0.0
    for size, tiles in _tiles(facts):
        chosen = min(demo.k, size)
        if demo.update_levels:
            bits += tiles * size * _level_bits(size, nodes, _vote_shares(demo, chosen / size), demo.update_levels)
            continue
        mean_votes = nodes * chosen / size
        merged = size * -math.expm1(nodes * math.log1p(-chosen / size)) if chosen < size else size
        kept = min(merged, demo.update_topk or size)
        bits += CODEC_OVERHEAD * tiles * (_choice_bits(size, kept) + kept * _size_bits(mean_votes))
    scales = 2 * facts.tiles if demo.magnitude == "tile" else 0
    return bits / 8 + scales + CALL_BYTES + ROW_BYTES_A_NODE * nodes


def transfer_s(facts: ModelFacts, demo: DemoSpec, swarm: SwarmFacts) -> float:
    """Seconds of the upload and the download of a round."""
    up = contribution_bytes(facts, demo) + OTHER_BYTES_A_ROUND
    down = update_bytes(facts, demo, swarm.nodes) + OTHER_BYTES_A_ROUND
    return 8 * up / swarm.up_bits_s + 8 * down / swarm.down_bits_s


def _tiles(facts: ModelFacts) -> tuple[tuple[int, int], tuple[int, int]]:
    return (TILE_EDGE**2, facts.matrix_tiles), (TILE_EDGE, facts.vector_tiles)


def _choice_bits(size: int, chosen: float) -> float:
    """Bits of a choice of `chosen` among `size` components, and of one sign for each."""
    chosen = min(chosen, size)
    ways = math.lgamma(size + 1) - math.lgamma(chosen + 1) - math.lgamma(size - chosen + 1)
    return ways / math.log(2) + chosen


def _vote_shares(demo: DemoSpec, share: float) -> Shares:
    """The share of components with each vote, from the lowest to the highest. share: of the components with one."""
    if not demo.vote_levels:
        return np.array([share / 2, 1 - share, share / 2])
    edges = demo.vote_step * (np.arange(-demo.vote_levels, demo.vote_levels) + 0.5)
    below = np.array([0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges])
    return np.diff(below, prepend=0.0, append=1.0)


def _level_bits(size: int, nodes: int, votes_of_one: Shares, levels: int) -> float:
    """Bits of a component in 2 · levels + 1 levels: the sum of the votes of `nodes` nodes."""
    sums = np.ones(1)
    for _ in range(min(nodes, NODES_ADDED_MAX)):  # beyond, the shape of the sum changes no more
        sums = np.convolve(sums, votes_of_one)
    votes = np.arange(len(sums)) - len(sums) // 2
    size_of = np.bincount(np.abs(votes), weights=sums)  # the probability that a sum has the magnitude 0, 1, …
    up_to = np.minimum(np.cumsum(size_of), 1) ** size  # and that the largest of a tile has at most that
    shares = np.zeros(2 * levels + 1)
    for largest, probability in enumerate(np.diff(up_to), 1):
        level = np.sign(votes) * ((2 * levels * np.abs(votes) + largest) // (2 * largest))
        inside = np.abs(votes) <= largest
        of_largest = np.bincount(level[inside] + levels, weights=sums[inside], minlength=len(shares))
        shares += probability * of_largest / of_largest.sum()
    return _code_bits(shares / shares.sum())


def _code_bits(shares: Shares) -> float:
    """Bits of a digit in the Huffman code of the bytes that digits are packed into. It spends at least a bit a byte."""
    each = digits_of_a_byte(len(shares) // 2)
    of_bytes = reduce(lambda ways, one: np.outer(ways, one).ravel(), [shares] * each)
    heap = [float(share) for share in of_bytes if share > 0]
    heapq.heapify(heap)
    bits = 0.0 if len(heap) > 1 else 1.0
    while len(heap) > 1:  # each merge lengthens the codes of what is below it by a bit
        together = heapq.heappop(heap) + heapq.heappop(heap)
        bits += together
        heapq.heappush(heap, together)
    return bits / each


def _size_bits(mean_votes: float) -> float:
    """Entropy of a merged component's size in bits: a Poisson count of votes that is at least 1."""
    if mean_votes <= 0:
        return 0.0
    counts = np.arange(1, math.ceil(mean_votes + 8 * math.sqrt(mean_votes)) + 64)
    logs = counts * math.log(mean_votes) - mean_votes - np.array([math.lgamma(count + 1) for count in counts])
    logs -= math.log(-math.expm1(-mean_votes))
    return float(-(np.exp(logs) * logs).sum() / math.log(2))
