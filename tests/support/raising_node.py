"""A node whose device fails during a micro-batch, after BATCHES micro-batches.

python raising_node.py start HOST:PORT …
"""

from __future__ import annotations

import sys

from thinwire_node import __main__
from thinwire_node.star.trainer import Trainer

BATCHES = 20

if __name__ == "__main__":
    micro_batch = Trainer.micro_batch
    trained = 0

    def raises(trainer: Trainer, positions: range) -> None:
        global trained  # noqa: PLW0603 - one process, one count
        trained += 1
        if trained > BATCHES:
            raise RuntimeError("the device fell off the bus")
        micro_batch(trainer, positions)

    Trainer.micro_batch = raises  # type: ignore[assignment,method-assign]
    sys.argv = ["thinwire-node", *sys.argv[1:]]
    __main__.main()
