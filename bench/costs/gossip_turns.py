"""Measures the processor time of a turn of `Gossip`: one message each way, without lines, optimizer and other ranks.
And of pulling a gradient towards peers.

Edges with both ends and one-way edges take turns, with each codec. Each figure is the least of several iterations.

python -m bench.costs.gossip_turns --parameters 8400000
"""

from __future__ import annotations

import argparse
import time

import torch

from thinwire.gossip.compressed import CompressedCodec
from thinwire.gossip.edge_codec import DenseCodec
from thinwire.gossip.flat import FlatLayout
from thinwire.gossip.pending import PendingTurns
from thinwire.gossip.pushed import PushedTurns
from thinwire.gossip.turns import TOPOLOGY_NUMBER, Arrived, Turns
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.pull import pull

CODECS = ("dense", "bf16", "int8")
PEERS = (1, 4, 12)
"""That a node of a one-peer exponential graph has, of 2, 16 and 4,096."""
PEER = 1
WEIGHT = 0.5
"""Of the peer, on an edge with both ends."""
STEP = 1e-4
"""What is added to the parameters before each turn."""


class Exchanged:
    """A rank that hears its own messages, and the least processor time of its turns, in seconds."""

    def __init__(self, turns: Turns, parameter: torch.nn.Parameter) -> None:
        self._turns = turns
        self._parameter = parameter
        self._iteration = -1
        self.least_s = float("inf")

    def turn(self) -> None:
        with torch.no_grad():
            self._parameter.add_(STEP)
        iteration = self._iteration = self._iteration + 1
        began = time.process_time()
        launched = self._turns.launch({PEER: WEIGHT}, [PEER])
        spent_s = time.process_time() - began
        self._turns.begin(iteration, launched)
        message = launched.messages[PEER]
        buffer = self._turns.arriving.take()
        buffer[: message.numel()].copy_(message)
        self._turns.receive([Arrived(iteration, PEER, buffer, message.numel())])
        began = time.process_time()
        self._turns.mix([Turn(TOPOLOGY_NUMBER, iteration, PEER)], iteration, 1.0)
        self.least_s = min(self.least_s, spent_s + time.process_time() - began)
        self._turns.sent(iteration, launched)
        self._turns.keep(set())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=8_400_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.parameters:,} parameters, {arguments.threads} thread(s): processor time of a turn\n")
    print("| codec | edges with both ends | one-way | ratio |\n|---|---|---|---|")
    for codec in CODECS:
        both, one_way = _measured(codec, arguments.parameters, arguments.iterations)
        print(f"| `{codec}` | {both * 1e3:.0f} ms | {one_way * 1e3:.0f} ms | {one_way / both:.1f}× |", flush=True)

    peers = "\n".join(f"| {count} | {_pulled(arguments, count) * 1e3:.0f} ms |" for count in PEERS)
    print(f"\n| peers, towards which a gradient is pulled | |\n|---|---|\n{peers}")


def _pulled(arguments: argparse.Namespace, peers: int) -> float:
    """Seconds of processor time of the least of several."""
    x, *copies = (torch.randn(arguments.parameters) for _ in range(1 + peers))
    out, least_s = torch.empty_like(x), float("inf")
    for _ in range(arguments.iterations):
        began = time.process_time()
        pull(x, copies, 0.5, out)
        least_s = min(least_s, time.process_time() - began)
    return least_s


def _measured(codec: str, parameters: int, iterations: int) -> tuple[float, float]:
    """Seconds of edges with both ends, and of one-way ones. They alternate."""
    parameter = torch.nn.Parameter(torch.randn(parameters).mul_(0.02))
    layout = FlatLayout([parameter])
    pending = PendingTurns(layout, DenseCodec(layout) if codec == "dense" else CompressedCodec(layout, codec))
    ranks = [Exchanged(pending, parameter), Exchanged(PushedTurns(layout, codec), parameter)]
    for _ in range(iterations):
        for rank in ranks:
            rank.turn()
    return ranks[0].least_s, ranks[1].least_s


if __name__ == "__main__":
    main()
