"""Writes what a coordinator has promised before the promise leaves: leases, topology, members and their keys.

One write at a time covers all that happened meanwhile, because a thousand nodes may report at once.
"""

from __future__ import annotations

import asyncio

import msgpack

from thinwire_coordinator.gossip.directory import Directory, DirectorySettings
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_coordinator.swarm.workers import Job
from thinwire_proto.errors import Damaged

TOPOLOGY, MEMBERS, KEYS = "topology", "members", "keys"


class Store:
    """directory: as it was on disk. keys: the public key of each node of the directory, 32 bytes."""

    def __init__(self, swarm: Swarm, settings: DirectorySettings) -> None:
        self._swarm = swarm
        ledger, now = swarm.state.ledger, swarm.view.now
        members, self.keys = ledger.directory(MEMBERS), ledger.directory(KEYS) or {}
        if not isinstance(self.keys, dict):
            raise Damaged("cannot read the keys of members on disk")
        if members is None:
            self.directory = Directory(settings)
        else:
            self.directory = Directory.from_plain(settings, ledger.directory(TOPOLOGY), members, now)
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._written = self.directory.number, len(self.keys)

    async def keep(self) -> None:
        """Return when all that has been decided up to now is on disk."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write())
            self._swarm.tasks.must_succeed(self._next)
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._turn:
            self._next = None  # what is decided from now on needs another write
            directory = self._directory()
            parts = {MEMBERS: _packed(directory.plain_members())}
            number, keys = directory.number, len(self.keys)
            if number != self._written[0]:
                parts[TOPOLOGY] = _packed(directory.plain_topology())
            if keys != self._written[1]:
                parts[KEYS] = _packed(self.keys)
            leases, ledger = self._swarm.registry.leases.packed(), self._swarm.state.ledger
            await self._swarm.workers.submit(Job.WRITE_BEAT, ledger.record_directory, leases, parts)
            self._written = number, keys

    def _directory(self) -> Directory:
        """The directory, whose forgotten nodes need no keys."""
        if len(self.keys) > len(self.directory.by_node):
            self.keys = {node: key for node, key in self.keys.items() if node in self.directory.by_node}
        return self.directory


def _packed(plain: object) -> bytes:
    return bytes(msgpack.packb(plain, use_bin_type=True))
