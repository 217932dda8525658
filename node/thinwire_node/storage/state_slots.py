"""State slots let several nodes share one folder, as the containers of a compose service share a volume.

A slot is a folder DIR/0, DIR/1, … that serves as a state directory. Each node locks one slot while it runs, so two
nodes that start at the same moment get different slots. If a node is killed, its slot is free at once, and the next
owner continues from its state. Each node takes the lowest free slot. A swarm that restarts with the same number of
nodes thus finds all of its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_common.file_system import check_locks
from thinwire_proto.errors import ConfigError

STATE_SLOTS_MAX = 1024
"""Equal to a contract's default limit on nodes."""


@dataclass(frozen=True)
class StateSlot:
    """One slot: its number and its folder."""

    number: int
    folder: Path


@contextmanager
def free_state_slot(shared: Path, slots_max: int = STATE_SLOTS_MAX) -> Iterator[StateSlot]:
    """Hold the first free slot of the folder `shared` inside a with block.

    Raises ConfigError if all slots are taken or the folder cannot be used."""
    lock, slot = _take(shared, slots_max)
    try:
        yield slot
    finally:
        lock.release()


def _take(shared: Path, slots_max: int) -> tuple[FileLock, StateSlot]:
    """Lock the first free slot. Returns the held lock and the slot."""
    try:
        shared.mkdir(parents=True, exist_ok=True)
        check_locks(shared)
        for number in range(slots_max):
            folder = shared / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / "slot.lock")
            if take_at_once(lock):
                if _is_free(folder):
                    return lock, StateSlot(number, folder)
                lock.release()
    except OSError as error:
        raise ConfigError(f"{shared}: cannot be used for state slots: {error.strerror or error}") from None
    raise ConfigError(f"{shared}: running nodes hold all {slots_max} slots")


def _is_free(folder: Path) -> bool:
    """Whether no node uses this folder as its --state-dir."""
    lock = FileLock(folder / "lock")
    free = take_at_once(lock)
    lock.release()
    return free


def take_at_once(lock: FileLock) -> bool:
    """Take a lock, unless another process has it."""
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True
