"""Collects the nodes' parameters at the end of a gossip run, and seals their mean as the model.

One body arrives at a time, and is kept on disk until the mean is sealed, so memory does not grow with the nodes. Then
the bodies are read part by part, because each node is compared with the others (`final_mean.bounded_mean`). After a
restart, nodes are asked again.

Parameters that do not fit the last sketch that their node has signed are refused (`Sketches.misfit`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_common.logs import tell
from thinwire_common.within import Within
from thinwire_coordinator.gossip.beats import Beats, ReportRefused
from thinwire_coordinator.gossip.directory import Phase
from thinwire_coordinator.gossip.ledger_rows import Deposited, RowSealer, encode_deposits
from thinwire_coordinator.gossip.settings import GossipSettings
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.signatures import NodeSignature
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Job
from thinwire_proto import limits
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.final_mean import READ_NUMBERS, BoundedMean, Read, bounded_mean, in_integers
from thinwire_proto.identity.keys import PublicKey

log = logging.getLogger("thinwire.coordinator")

CHUNK = 1 << 20
"""Parameters that are converted at a time."""
DEPOSIT_BYTES_A_PARAMETER = 4 + 8 + 4
"""The body that arrives; or the sum, and the mean."""
CHUNK_BYTES_A_PARAMETER = 32
"""Of the parameters that are being converted: in float64, rounded, and in integers. Of those that are compared, of all
nodes together: read, in one tensor, and nearer."""
SLOWEST_BYTES_A_SECOND = 64 << 10
"""A body must arrive at this rate at least, so that nobody holds up the others for ever."""
HASH_BYTES = 32
FOLDER = "deposits"
"""In the state directory, from the first body until the mean is sealed: 4 bytes a parameter and node."""
NAMED_MAX = 8
"""Nodes that are named of those that the mean lacks."""


def deposit_bytes(parameters: int) -> int:
    """The most memory that deposits take, however many nodes send theirs."""
    return DEPOSIT_BYTES_A_PARAMETER * parameters + CHUNK_BYTES_A_PARAMETER * max(min(parameters, CHUNK), READ_NUMBERS)


class Deposits:
    def __init__(self, hall: Hall, settings: GossipSettings, beats: Beats, sealer: RowSealer) -> None:
        self._hall = hall
        self._settings = settings
        self._beats = beats
        self._sealer = sealer
        self._parameters = hall.layout.parameters
        self._turn = asyncio.Lock()
        self._folder = hall.state.folder / FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)  # of an earlier life: the nodes are asked again
        self._far: dict[str, float] = {}  # nodes that the mean was made without, and how far they were
        self._taken: dict[str, tuple[Deposited, PublicKey]] = {}
        self._progress = hall.now()
        self._waiting: set[str] = set()  # nodes whose calls wait for their turn
        self._failed: set[str] = set()  # nodes whose newest turn gave nothing

    async def take(self, member: Member, claim: Deposited, body_bytes: int, parts: AsyncIterator[bytes]) -> str:
        """Take a node's parameters. Returns why they are refused, or nothing. Raises ReportRefused.

        claim, body_bytes: what the node announces, whose bytes the parts are."""
        taken = self._taken.get(member.node_id)
        if taken is not None and taken[0].hash == claim.hash:
            return ""  # they are in the mean, and the answer did not arrive
        if refusal := self._why_refuse(claim, body_bytes):
            return refusal
        if not member.public_key.verifies(claim.signature, claim.statement(self._hall.contract.hash)):
            text = "the parameters are not signed by the key of the node"
            raise ReportRefused(Denied(DoorReason.BAD_SIGNATURE, text))
        async with self._turn_of(member.node_id):
            if refusal := self._why_refuse(claim, body_bytes):
                return refusal  # the same node's other call was first, or the mean is sealed
            try:
                return await self._receive(member, claim, parts)
            finally:
                self._note_turn(member.node_id)

    @asynccontextmanager
    async def _turn_of(self, node: str) -> AsyncIterator[None]:
        self._waiting.add(node)
        try:
            async with self._turn:
                self._waiting.discard(node)
                yield
        finally:
            self._waiting.discard(node)
            self._beats.directory.deposits(node, self._hall.now())

    def _note_turn(self, node: str) -> None:
        """Begin the patience anew after each deposit, and after each node's first turn that gave nothing: others waited
        meanwhile. A node's further failures do not, or it could hold up the end for ever."""
        if node in self._taken or node not in self._failed:
            self._progress = self._hall.now()
        if node in self._taken:
            self._failed.discard(node)
        else:
            self._failed.add(node)
        self._beats.figures.deposited.update(self._taken)

    async def _receive(self, member: Member, claim: Deposited, parts: AsyncIterator[bytes]) -> str:
        """Read a body, and add it. Returns why it is refused, or nothing."""
        try:
            async with Within(limits.CALL_S + 4 * self._parameters / SLOWEST_BYTES_A_SECOND):
                body = await self._read(parts)
        except asyncio.TimeoutError:
            return "the parameters arrive too slowly; send them again"
        if isinstance(body, str):
            return body
        adding = self._hall.workers.submit(Job.ADD_DEPOSIT, self._add, member, claim, body)
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:  # the call has ended; the thread adds on, and nobody else may until it has
            await asyncio.wait([adding])
            raise

    def _why_refuse(self, claim: Deposited, body_bytes: int) -> str:
        directory = self._beats.directory
        known = directory.by_node.get(claim.node)
        if directory.phase is not Phase.COLLECTING:
            return "no parameters are asked for now"
        if known is None or not directory.runs(known) or claim.node in self._taken:
            return "this node is no member of the newest topology, or its parameters are in the mean already"
        if claim.iteration != known.iteration or claim.iteration < self._settings.steps:
            return f"the parameters are of iteration {claim.iteration}; the node's report names {known.iteration}"
        if body_bytes != 4 * self._parameters:
            return f"the parameters have {4 * self._parameters} bytes; {body_bytes} are announced"
        if len(claim.head) != HASH_BYTES or len(claim.hash) != HASH_BYTES:
            return f"head and hash must have {HASH_BYTES} bytes"
        return ""

    async def _read(self, parts: AsyncIterator[bytes]) -> npt.NDArray[np.uint8] | str:
        """The body, or why it is refused."""
        body, filled = np.empty(4 * self._parameters, np.uint8), 0
        async for part in parts:
            if filled + len(part) > len(body) or (not part and filled):
                return "more bytes came than were announced, or an empty part"
            body[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
        return body if filled == len(body) else f"the parameters end after {filled} of {len(body)} bytes"

    def _add(self, member: Member, claim: Deposited, body: npt.NDArray[np.uint8]) -> str:
        """Keep a body, and its node among those in the mean: both or neither, whether or not the call still holds."""
        if hashlib.sha256(body.data).digest() != claim.hash:
            return "the parameters do not match their hash"
        x = torch.from_numpy(body.view("<f4").astype(np.float32, copy=False))
        try:
            for start in range(0, len(x), CHUNK):
                in_integers(x[start : start + CHUNK])
        except LocalError as error:
            return str(error)
        if misfit := self._beats.sketches.misfit(member.node_id, x, self._rate):
            text = f"the parameters of {member.name} are refused: {misfit}"
            tell(log, logging.WARNING, "coordinator.deposit_bounded", text, node_id=member.node_id, reason=misfit)
            return misfit
        self._folder.mkdir(exist_ok=True)
        body.tofile(self._path(member.node_id))
        self._taken[member.node_id] = claim, member.public_key
        return ""

    def _path(self, node: str) -> Path:
        return self._folder / hashlib.sha256(node.encode()).hexdigest()

    def _rate(self, iteration: int) -> float:
        return learning_rate(contract_at(self._hall.contract, iteration).schedule, iteration)

    async def seal_if_due(self) -> None:
        """Seal the mean once all members that are present and have begun have sent their parameters, or the patience is
        over. But never while a node waits for a turn whose last one did not fail: it cannot report meanwhile, and
        would soon be taken for lost."""
        async with self._turn:
            if self._beats.directory.phase is not Phase.COLLECTING or not self._is_due():
                return
            self._beats.is_closed = True
            await self._beats.seal_reports()  # no row may follow that of the mean
            if not self._beats.all_sealed:
                return  # the ledger is locked
            mean = await self._hall.workers.once_unlocked(Job.WRITE_BEAT, self._seal)
            await self._hall.workers.submit(Job.APPLY_UPDATE, self._sealer.show_mean, mean)
            self._beats.directory.phase = Phase.COMPLETE
            text = (
                f"the run is complete: the mean of {len(self._taken) - len(self._far)} nodes is sealed{self._without()}"
            )
            tell(log, logging.INFO, "coordinator.run_complete", text, step=self._sealer.step)
            self._hall.sealed.set()

    def _without(self) -> str:
        """The nodes that have trained and are not in the mean, in words; nothing if there are none."""
        steps, counted = self._settings.steps, self._taken.keys() - self._far.keys()
        trained = [one for one in self._beats.directory.by_node.values() if one.iteration and one.node not in counted]
        names = [
            f"{self._name(one.node)} ({self._how_far(one.node) or f'{one.iteration} of {steps} iterations'})"
            for one in trained[:NAMED_MAX]
        ]
        more = f" and {len(trained) - NAMED_MAX} more" if len(trained) > NAMED_MAX else ""
        return f", without {', '.join(names)}{more}" if names else ""

    def _name(self, node: str) -> str:
        known = self._hall.members.by_id
        return known[node].name if node in known else node[:8]

    def _how_far(self, node: str) -> str:
        """Why the parameters of a node that have come are not in the mean; nothing if they are, or have not come."""
        far = self._far.get(node)
        return f"its parameters were {far:,.3g} times as far from the median as usual" if far is not None else ""

    def _is_due(self) -> bool:
        if not self._taken or self._waiting - self._failed:
            return False
        awaited = [one for one in self._beats.directory.entered if one.node not in self._taken]
        patience_s = max(self._settings.patience_s, self._settings.lost_after_s)
        if not awaited:
            return True
        return self._hall.now() - self._progress > patience_s

    def _seal(self) -> Replica:
        nodes = sorted(self._taken)
        found = bounded_mean([self._reading(node) for node in nodes], self._hall.layout)
        self._far = {nodes[place]: far for place, far in found.far.items()}
        self._tell_bounded(nodes, found)
        taken = [self._taken[node] for node in nodes if node not in self._far]
        mean = _replica(self._hall, found.mean)
        body = encode_deposits([deposited for deposited, _ in taken])
        counted = tuple(deposited.counted(self._hall.contract.hash) for deposited, _ in taken)
        signed = [NodeSignature(key, deposited.signature) for deposited, key in taken]
        self._sealer.write_mean(mean, body, counted, signed)
        shutil.rmtree(self._folder, ignore_errors=True)
        return mean

    def _reading(self, node: str) -> Read:
        path = self._path(node)

        def read(part: slice) -> Tensor:
            found = np.fromfile(path, "<f4", part.stop - part.start, offset=4 * part.start)
            return torch.from_numpy(found.astype(np.float32, copy=False))

        return read

    def _tell_bounded(self, nodes: list[str], found: BoundedMean) -> None:
        """Say whose parameters are not in the mean, or not whole."""
        reasons = {node: self._how_far(node) for node in self._far}
        reasons |= {
            nodes[at]: f"{count} blocks of its parameters were brought nearer" for at, count in found.clipped.items()
        }
        for node in sorted(reasons)[:NAMED_MAX]:
            text = f"the final mean and {self._name(node)}: {reasons[node]}"
            tell(log, logging.WARNING, "coordinator.deposit_bounded", text, node_id=node, reason=reasons[node])


def _replica(hall: Hall, flat: Tensor) -> Replica:
    layout: TileLayout = hall.layout
    tensors, start = {}, 0
    for tensor in layout.tensors:
        size = int(np.prod(tensor.shape, dtype=np.int64))
        tensors[tensor.name] = flat[start : start + size].view(tensor.shape)
        start += size
    return Replica(hall.contract, tensors, 0, b"")
