"""A node that finds a card of so many bytes beside its processor, which computes all the same.

python small_card_node.py BYTES start HOST:PORT …
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from thinwire_node import __main__, resources
from thinwire_node.resources import ResourceLimits, Room, room_of

if __name__ == "__main__":
    CARD_BYTES = int(sys.argv[1])

    def room_beside_a_card(limits: ResourceLimits, folder: Path, device: str, processes: int = 1) -> Room:
        return replace(room_of(limits, folder, device, processes), device_bytes=CARD_BYTES)

    resources.room_of = room_beside_a_card
    sys.argv = ["thinwire-node", *sys.argv[2:]]
    __main__.main()
