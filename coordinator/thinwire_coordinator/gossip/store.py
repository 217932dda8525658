"""Keeps on disk what a coordinator has promised, before the promise leaves: leases, topology, members, and reports.

A node forgets what it has reported once the answer comes. So each report is on disk before its answer, and a
coordinator that was killed seals it in its next row. One write at a time covers all that happened meanwhile, because a
thousand nodes may report at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from thinwire_coordinator.gossip.directory import Directory
from thinwire_coordinator.gossip.settings import REPORTS_OF_A_NODE, GossipSettings
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.leases import count
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.errors import Damaged, PayloadError
from thinwire_proto.gossip.reports import REPORTS_MAX, SignedReport, decode_reports, encode_reports
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.rows import Counted

TOPOLOGY, MEMBERS = "topology", "members"
REPORT = "report "
"""Prefix of their keys in the directory on disk; the hash of the report follows."""


@dataclass(frozen=True)
class SealedReport:
    """A report as a row counts it. samples: those that no earlier report named."""

    signed: SignedReport
    public_key: PublicKey
    samples: int

    @property
    def counted(self) -> Counted:
        return Counted(self.signed.node, self.signed.hash, 1, self.samples)

    @property
    def key(self) -> str:
        """Of the report in the directory on disk."""
        return REPORT + self.signed.hash.hex()

    def packed(self) -> bytes:
        return bytes(msgpack.packb([self.public_key.data, self.samples, encode_reports([self.signed])]))

    @classmethod
    def from_plain(cls, plain: Any) -> SealedReport:
        """Restore a report from what `packed` packs. Raises Damaged."""
        try:
            key, samples, body = plain
            (signed,) = decode_reports(body)
            return cls(signed, PublicKey(key), int(samples))
        except (TypeError, ValueError, PayloadError) as error:
            raise Damaged(f"cannot read a report on disk that is in no row: {error}") from None


class Unsealed:
    """The reports of the next row. kept: those on disk, in the order in which they came."""

    def __init__(self, kept: Iterable[SealedReport]) -> None:
        self._reports = list(kept)
        self._of_node = Counter(entry.signed.node for entry in self._reports)
        self._unwritten: list[SealedReport] = []

    @property
    def is_empty(self) -> bool:
        return not self._reports

    def has_room(self, node: str) -> bool:
        """Whether the next row has room for another report of this node."""
        return self._of_node[node] < REPORTS_OF_A_NODE and len(self._reports) < REPORTS_MAX

    def add(self, entry: SealedReport) -> None:
        self._of_node[entry.signed.node] += 1
        self._reports.append(entry)
        self._unwritten.append(entry)

    def take(self) -> list[SealedReport]:
        """All of them, for a row that is written next."""
        taken = self._reports
        self._reports, self._unwritten = [], []
        self._of_node.clear()
        return taken

    def put_back(self, taken: Iterable[SealedReport] = ()) -> None:
        """Undo `take`, or `parts`, because nothing was written. All reports are written again."""
        self._reports = [*taken, *self._reports]
        self._of_node = Counter(entry.signed.node for entry in self._reports)
        self._unwritten = list(self._reports)

    def parts(self) -> dict[str, bytes]:
        """Those that are not on disk, as parts of the directory that are written next."""
        unwritten, self._unwritten = self._unwritten, []
        return {entry.key: entry.packed() for entry in unwritten}


class Store:
    """directory: as it was on disk. unsealed: the reports that are in no row. begun: tells the amendments that are in
    no row, as parts of the directory on disk."""

    def __init__(self, hall: Hall, settings: GossipSettings, begun: Callable[[], Mapping[str, bytes]] = dict) -> None:
        self._hall = hall
        self._begun = begun
        ledger = hall.state.ledger
        self.directory = directory_on_disk(ledger, settings, hall.now())
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
        parts |= self._begun()
        if number != self._written:
            parts[TOPOLOGY] = _packed(directory.plain_topology())
        leases = self._hall.leases.packed()

        def write() -> int:
            ledger.record_directory(leases, parts)
            return number

        return write


def directory_on_disk(ledger: Ledger, settings: GossipSettings, now: float) -> Directory:
    """The directory as it was last recorded; a new one if there is none. Raises Damaged."""
    members = ledger.directory(MEMBERS)
    if members is None:
        return Directory(settings)
    directory = Directory.from_plain(settings, ledger.directory(TOPOLOGY), members, now)
    leases = ledger.leases()
    for known in directory.by_node.values():  # a version that knew no amendments has not noted how far they reach
        directory.allow(known, count(leases.granted(known.node)))
    return directory


def _packed(plain: object) -> bytes:
    return bytes(msgpack.packb(plain, use_bin_type=True))
