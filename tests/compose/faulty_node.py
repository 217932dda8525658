"""Runs a real node with one fault in a container of the swarm: `faulty_node.py (flips|dawdles) NODE-ARGUMENTS…`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import torch

from thinwire_node.__main__ import main
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.star.trainer import Trainer

DAWDLES_S = 2.0
"""Length of a round in run.toml, so that every contribution is late. The node misses every second round."""


def flips() -> None:
    """Flip the last bit of one parameter after the second micro-batch."""
    micro_batch = Trainer.micro_batch
    batches = 0

    def flipping(trainer: Trainer, positions: range) -> None:
        nonlocal batches
        micro_batch(trainer, positions)
        batches += 1
        if batches == 2:
            with torch.no_grad():
                next(iter(trainer.replica.tensors.values())).view(torch.int32).view(-1)[0] ^= 1

    Trainer.micro_batch = flipping  # type: ignore[assignment, method-assign]


def dawdles() -> None:
    """Delay every contribution until its round is over."""
    contribute = Link.contribute

    async def dawdling(link: Link, *arguments: Any) -> Any:
        await asyncio.sleep(DAWDLES_S)
        return await contribute(link, *arguments)

    Link.contribute = dawdling  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    {"flips": flips, "dawdles": dawdles}[fault]()
    main()
