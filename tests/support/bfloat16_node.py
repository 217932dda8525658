"""A node whose passes compute in bfloat16, on a CPU too, as those on a card that has it do.

python bfloat16_node.py start HOST:PORT …
"""

from __future__ import annotations

import sys

import torch

from thinwire_node import __main__
from thinwire_node.training import compute

if __name__ == "__main__":
    compute.compute_dtype = lambda device: torch.bfloat16  # type: ignore[attr-defined]
    sys.argv = ["thinwire-node", *sys.argv[1:]]
    __main__.main()
