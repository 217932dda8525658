"""The process of a follower: `python -m thinwire_node.cli.follower PLACE RANK SIZE DEVICE THREADS`.

The leader starts it, and it ends with the leader: signals that end a program come to the leader alone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import torch

from thinwire_common.program import ending_signals, run_program
from thinwire_node.cli.site import store_at
from thinwire_node.kinds import FOLLOWERS
from thinwire_node.resources import card_room, memory_room
from thinwire_node.training.cards import card_locks
from thinwire_node.training.device import choose_device
from thinwire_node.training.ranks import BEGIN, ROOM, Ranks

log = logging.getLogger("thinwire.node")
LEADER_GONE = 1


def main() -> None:
    run_program("thinwire-node", _run)


def _run() -> None:
    place, rank, size, device, threads = sys.argv[1:]
    threading.Thread(target=_end_with_leader, daemon=True).start()
    torch.set_num_threads(int(threads))
    ranks = Ranks(store_at(Path(place), int(size)), int(rank), int(size))
    follow(ranks, device)
    ranks.end()


def follow(ranks: Ranks, device: str) -> None:
    """Do what the leader tells until it ends the node. device: as the volunteer named it. Raises ThinwireError."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)
    locks = card_locks()  # held until this process ends
    found, why = choose_device(device, locks)
    if why:
        log.warning("%s", why)
    while (head := ranks.hear()[0])["job"] == ROOM:
        memory, _ = memory_room(head["memory_max"], ranks.here)
        ranks.answer({"memory": memory, "card": card_room(str(found))})
    if head["job"] == BEGIN:
        FOLLOWERS[head["kind"]](ranks, found)


def _end_with_leader() -> None:
    # Nobody writes: this returns when the leader is gone, or has let this process end. It is no read of `sys.stdin`,
    # whose lock this thread would hold when Python ends, which then aborts.
    os.read(sys.stdin.fileno(), 1)
    os._exit(LEADER_GONE)


if __name__ == "__main__":
    main()
