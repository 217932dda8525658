"""Several nodes that share one folder, as the containers of a compose service share a volume: each takes a free slot.

A slot is a folder DIR/0, DIR/1, … that serves as a state directory. Who takes it holds a lock on it for as long as it
lives, so two nodes that start at the same moment get two slots, a slot whose owner was killed is free at once, and
whoever takes it next goes on from what it finds there. The lowest free slot is taken, so a swarm that comes back with
as many nodes as before finds all of its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_proto.errors import ConfigError

STATE_SLOTS_MAX = 1024
"""As many as a contract has nodes by default."""


@dataclass(frozen=True)
class StateSlot:
    number: int
    folder: Path


@contextmanager
def free_state_slot(shared: Path, slots_max: int = STATE_SLOTS_MAX) -> Iterator[StateSlot]:
    """The first free slot of the folder `shared`, held until the block is left.

    Raises ConfigError if all are taken, or if the folder cannot be used."""
    lock, slot = _take(shared, slots_max)
    try:
        yield slot
    finally:
        lock.release()


def _take(shared: Path, slots_max: int) -> tuple[FileLock, StateSlot]:
    """A lock that is held, and what it is on."""
    try:
        for number in range(slots_max):
            folder = shared / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / "slot.lock")
            if _take_at_once(lock):
                if _is_free(folder):
                    return lock, StateSlot(number, folder)
                lock.release()
    except OSError as error:
        raise ConfigError(f"{shared}: cannot hold nodes' slots: {error.strerror or error}") from None
    raise ConfigError(f"{shared}: all {slots_max} slots are taken by nodes that run")


def _is_free(folder: Path) -> bool:
    """Whether no node was given this folder by name, as its --state-dir."""
    lock = FileLock(folder / "lock")
    free = _take_at_once(lock)
    lock.release()
    return free


def _take_at_once(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True
