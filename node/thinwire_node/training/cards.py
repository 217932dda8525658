"""Distributes the graphics cards of one machine among its nodes.

Each node holds a lock on its card while it runs. The system releases the lock when the process dies. A card that
several nodes share has one lock for each of them. The locks are files in a folder of the user. Nodes in containers
share the folder through THINWIRE_NODE_RUNTIME_DIR.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from thinwire_node.storage.state_slots import take_at_once
from thinwire_proto import limits

log = logging.getLogger("thinwire.node")

NODES_MAX = 64
"""The maximum number of nodes counted on one card."""


@dataclass(frozen=True)
class Card:
    """A graphics card.

    number: N of cuda:N in this process. id: the same in every process of the machine."""

    number: int
    id: str


def choose_card(cards: Sequence[Card], nodes: Mapping[str, int]) -> tuple[Card, str]:
    """Choose the first card with the fewest nodes. Returns a warning too if the card is shared. nodes: by card id."""
    card = min(cards, key=lambda one: nodes.get(one.id, 0))
    others = nodes.get(card.id, 0)
    return card, f"all cards are taken: cuda:{card.number} is shared with {others} other node(s)" if others else ""


def cuda_cards() -> list[Card]:
    """The cards that this process may use. CUDA_VISIBLE_DEVICES can limit them."""
    return [
        Card(number, str(getattr(torch.cuda.get_device_properties(number), "uuid", number)))
        for number in range(torch.cuda.device_count())
    ]


def runtime_dir() -> Path:
    """The folder for locks that all nodes of a user on this machine share."""
    if given := os.environ.get("THINWIRE_NODE_RUNTIME_DIR"):
        return Path(given)
    if given := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / "thinwire"
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"thinwire-{user}"


def card_locks() -> CardLocks | None:
    """The locks of this user on this machine. Warns and returns None if their folder cannot be created."""
    try:
        return CardLocks(runtime_dir() / "cards")
    except OSError as error:
        _warn(error)
        return None


def _warn(error: OSError) -> None:
    text = f"cannot see other nodes on this machine, so nodes may share a card: {error}"
    log.warning("%s", text)


class CardLocks:
    """Locks on cards, as files in a folder. Raises OSError if the folder cannot be created."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[FileLock] = []
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def take(self, cards: Sequence[Card]) -> tuple[Card, str]:
        """Choose one of these cards and hold it until `release` or the end of the process. Returns the card and a
        warning if it is shared.

        If the locks cannot be used, for example because they belong to another user, warns and chooses the first
        card."""
        try:
            # else two nodes that start together could choose the same card
            with FileLock(self._folder / "cards.lock", timeout=limits.LOCK_WAIT_S):
                return self._take(cards)
        except OSError as error:  # Timeout is an OSError
            _warn(error)
            return cards[0], ""

    def _take(self, cards: Sequence[Card]) -> tuple[Card, str]:
        card, warning = choose_card(cards, {one.id: self._nodes_on(one) for one in cards})
        for lock in self._locks(card):
            if take_at_once(lock):
                self._held.append(lock)
                break
        return card, warning

    def release(self) -> None:
        for lock in self._held:
            lock.release()
        self._held = []

    def _nodes_on(self, card: Card) -> int:
        count = 0
        for lock in self._locks(card):
            if not Path(lock.lock_file).exists():
                break  # the files are created in order and never removed
            if take_at_once(lock):
                lock.release()
            else:
                count += 1
        return count

    def _locks(self, card: Card) -> list[FileLock]:
        return [FileLock(self._folder / f"card-{card.id}-{number}.lock") for number in range(NODES_MAX)]
