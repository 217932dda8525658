"""The processes of a node that computes on several devices: who starts them, and how they find each other.

On one host the leader starts the followers, and they meet in a file of a private folder. torchrun starts all of them,
on any number of hosts; they meet where the environment says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from thinwire_common.options import host_and_port
from thinwire_node.cli.options import ALL_CARDS, devices_named
from thinwire_node.training.ranks import Ranks
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.limits import RANK_END_S

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
"""Processes of one host talk where nobody else can."""
FOLLOWER_MODULE = "thinwire_node.cli.follower"


@dataclass(frozen=True)
class Launch:
    """This process among those that a launcher has started. local: its number on this host, of `here`."""

    rank: int
    size: int
    local: int
    here: int


def launch() -> Launch | None:
    """The launch that torchrun describes in the environment; None if there is none, or if it starts one process. Raises
    UsageError if it names no place where the processes meet."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if not all(os.environ.get(name, "").isdecimal() for name in names):
        return None
    found = Launch(*(int(os.environ[name]) for name in names))
    if found.size == 1:
        return None
    place = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    try:
        host_and_port(place, port_min=1)
    except ValueError:
        raise UsageError(
            f"WORLD_SIZE is {found.size}, but MASTER_ADDR:MASTER_PORT, {place!r}, is no place where so many processes "
            "can meet; start them by torchrun, or unset RANK and WORLD_SIZE"
        ) from None
    return found


def devices_of(text: str, launched: Launch | None) -> list[str]:
    """The devices of this process's option, one for each process that it stands for. Raises UsageError."""
    if text == ALL_CARDS:
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not cards:
            raise UsageError("--device all: this machine has no card that torch can use; try auto, or cpu*2")
        devices = [f"cuda:{number}" for number in range(cards)]
    else:
        devices = devices_named(text)
    if launched is None:
        return devices
    if len(devices) == 1:
        return [f"cuda:{launched.local}"] if devices[0] in ("cuda", "auto") and torch.cuda.is_available() else devices
    if launched.local >= len(devices):
        raise UsageError(f"--device {text}: it names {len(devices)} devices, and this is process {launched.local} here")
    return [devices[launched.local]]


@contextmanager
def meeting(launched: Launch) -> Iterator[Ranks]:
    """The ranks that a launcher has started, of which this is one."""
    ranks = Ranks(None, launched.rank, launched.size, launched.here)
    try:
        yield ranks
    finally:
        ranks.end()


@contextmanager
def followers(devices: Sequence[str], threads: int) -> Iterator[Ranks]:
    """Start a follower for each device but the first, and lead them. threads: of torch, of each process."""
    os.environ.update(LOOPBACK)
    size = len(devices)
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        place = Path(folder) / "ranks"
        running = [_start(place, rank, size, devices[rank], threads) for rank in range(1, size)]
        ranks: Ranks | None = None
        try:
            ranks = _meet(place, size, running)
            yield ranks
        finally:
            if ranks is not None:
                ranks.end()
            for process in running:
                _end(process, ranks)


def _start(place: Path, rank: int, size: int, device: str, threads: int) -> subprocess.Popen[bytes]:
    """The follower ends when this process closes the pipe to it, or is gone. It runs in the private folder of `place`,
    because Python takes modules from the working directory before its own."""
    command = [sys.executable, "-m", FOLLOWER_MODULE, str(place), str(rank), str(size), device, str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=place.parent)


def _end(process: subprocess.Popen[bytes], ranks: Ranks | None) -> None:
    """Wait until a follower that was told to end has done so, or kill it."""
    if ranks is not None and not ranks.is_broken:
        with suppress(subprocess.TimeoutExpired):
            process.wait(RANK_END_S)
    process.kill()
    process.wait()


def _meet(place: Path, size: int, running: Sequence[subprocess.Popen[bytes]]) -> Ranks:
    """Wait for all followers. Raises ConfigError if one ends instead; it has said why."""

    def check() -> None:
        for rank, process in enumerate(running, 1):
            if process.poll() is not None:
                raise ConfigError(f"process {rank} of this node could not start, for the reason above")

    return Ranks(store_at(place, size), 0, size, check=check)


def store_at(place: Path, size: int) -> FileStore:
    """The meeting place of the ranks of one host."""
    return FileStore(str(place), size)
