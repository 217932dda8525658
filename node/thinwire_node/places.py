"""Several nodes that share one folder, as the containers of a compose service share a volume: each takes a free place.

A place is a folder DIR/0, DIR/1, … that serves as a state directory. Who takes it holds a lock on it for as long as it
lives, so two nodes that start at the same moment get two places, a place whose owner was killed is free at once, and
whoever takes it next goes on from what it finds there. The lowest free place is taken, so a swarm that comes back with
as many nodes as before finds all of its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_proto.errors import ConfigError

PLACES_MAX = 1024
"""As many as a contract has nodes by default."""


@dataclass(frozen=True)
class Place:
    number: int
    folder: Path


@contextmanager
def free_place(shared: Path, places_max: int = PLACES_MAX) -> Iterator[Place]:
    """The first free place of the folder `shared`, held until the block is left.

    Raises ConfigError if all are taken, or if the folder cannot be used."""
    lock, place = _take(shared, places_max)
    try:
        yield place
    finally:
        lock.release()


def _take(shared: Path, places_max: int) -> tuple[FileLock, Place]:
    """A lock that is held, and what it is on."""
    try:
        for number in range(places_max):
            folder = shared / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / "place.lock")
            if _take_at_once(lock):
                if _is_free(folder):
                    return lock, Place(number, folder)
                lock.release()
    except OSError as error:
        raise ConfigError(f"{shared}: cannot hold nodes' places: {error.strerror or error}") from None
    raise ConfigError(f"{shared}: all {places_max} places are taken by nodes that run")


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
