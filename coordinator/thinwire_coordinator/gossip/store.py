"""Writes what a coordinator has promised before the promise leaves: leases, topology, members, and the reports that it
has answered.

One write at a time covers all that happened meanwhile, because a thousand nodes may report at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgpack

from thinwire_coordinator.gossip.directory import Directory, DirectorySettings
from thinwire_coordinator.gossip.unsealed import REPORT, SealedReport, Unsealed
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.workers import Job

TOPOLOGY, MEMBERS = "topology", "members"


class Store:
    """directory: as it was on disk. unsealed: the reports that are in no row."""

    def __init__(self, hall: Hall, settings: DirectorySettings) -> None:
        self._hall = hall
        ledger, now = hall.state.ledger, hall.now()
        members = ledger.directory(MEMBERS)
        if members is None:
            self.directory = Directory(settings)
        else:
            self.directory = Directory.from_plain(settings, ledger.directory(TOPOLOGY), members, now)
        self.unsealed = Unsealed(map(SealedReport.from_plain, ledger.directory_parts(REPORT)))
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._written = self.directory.number

    async def keep(self) -> None:
        """Return when all that has been decided up to now is on disk."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write())
            self._hall.tasks.must_succeed(self._next)
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._turn:
            self._next = None  # what is decided from now on needs another write
            tries = 0

            def prepare() -> Callable[[], int]:
                nonlocal tries
                tries += 1
                if tries > 1:
                    self.unsealed.put_back()  # those that no row has by now
                return self._writing()

            self._written = await self._hall.workers.newest_once_unlocked(Job.WRITE_BEAT, prepare)

    def _writing(self) -> Callable[[], int]:
        """The write of all that is newest. It returns the number of the topology that it has written."""
        directory, ledger = self.directory, self._hall.state.ledger
        parts, number = {MEMBERS: _packed(directory.plain_members()), **self.unsealed.parts()}, directory.number
        if number != self._written:
            parts[TOPOLOGY] = _packed(directory.plain_topology())
        leases = self._hall.leases.packed()

        def write() -> int:
            ledger.record_directory(leases, parts)
            return number

        return write


def _packed(plain: object) -> bytes:
    return bytes(msgpack.packb(plain, use_bin_type=True))
