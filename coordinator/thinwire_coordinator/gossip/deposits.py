"""Collects the nodes' parameters at the end of a run without a centre, and seals their mean as the model.

One body arrives at a time, and is added to one sum of integers, so memory does not grow with the nodes and the order
does not matter. The sum lives in memory alone: after a restart, nodes are asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_common.logs import tell
from thinwire_common.within import Within
from thinwire_coordinator.access.refusals import Denied, DoorReason
from thinwire_coordinator.gossip.answers import DepositClaim, ReportRefused
from thinwire_coordinator.gossip.beats import Beats
from thinwire_coordinator.gossip.directory import Phase
from thinwire_coordinator.gossip.rows import RowSealer
from thinwire_coordinator.gossip.settings import GossipSettings
from thinwire_coordinator.ledger.gossip_rows import Deposited, encode_deposits
from thinwire_coordinator.round.contributions import NodeSignature
from thinwire_coordinator.swarm.members import Member
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_coordinator.swarm.workers import Job
from thinwire_proto import limits
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.final_mean import in_integers, mean_of_sum
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey

log = logging.getLogger("thinwire.coordinator")

CHUNK = 1 << 20
"""Parameters that are converted at a time."""
DEPOSIT_BYTES_A_PARAMETER = 4 + 8 + 4
"""The body that arrives, the sum, and the mean."""
CHUNK_BYTES_A_PARAMETER = 32
"""Of the parameters that are being converted: in float64, rounded, and in integers."""
SLOWEST_BYTES_A_SECOND = 64 << 10
"""A body must arrive at this rate at least, so that nobody holds up the others for ever."""
HASH_BYTES = 32
NAMED_MAX = 8
"""Nodes that are named of those that the mean lacks."""


def deposit_bytes(parameters: int) -> int:
    """The most memory that deposits take, however many nodes send theirs."""
    return DEPOSIT_BYTES_A_PARAMETER * parameters + CHUNK_BYTES_A_PARAMETER * min(parameters, CHUNK)


class Deposits:
    def __init__(self, swarm: Swarm, settings: GossipSettings, beats: Beats, sealer: RowSealer) -> None:
        self._swarm = swarm
        self._settings = settings
        self._beats = beats
        self._sealer = sealer
        self._parameters = swarm.view.layout.parameters
        self._turn = asyncio.Lock()
        self._sum: Tensor | None = None
        self._taken: dict[str, tuple[Deposited, PublicKey]] = {}
        self._progress = swarm.view.now
        self._waiting: set[str] = set()  # nodes whose calls wait for their turn
        self._failed: set[str] = set()  # nodes whose newest turn gave nothing

    async def take(self, member: Member, claim: DepositClaim, parts: AsyncIterator[bytes]) -> str:
        """Take a node's parameters. Returns why they are refused, or nothing. Raises ReportRefused."""
        taken = self._taken.get(member.node_id)
        if taken is not None and taken[0].hash == claim.hash:
            return ""  # they are in the mean, and the answer did not arrive
        if refusal := self._why_refuse(member, claim):
            return refusal
        self._check_signed(member, claim)
        async with self._turn_of(member.node_id):
            if refusal := self._why_refuse(member, claim):
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
            self._beats.directory.deposits(node, self._swarm.view.now)

    def _note_turn(self, node: str) -> None:
        """Begin the patience anew after each deposit, and after each node's first turn that gave nothing: others waited
        meanwhile. A node's further failures do not, or it could hold up the end for ever."""
        if node in self._taken or node not in self._failed:
            self._progress = self._swarm.view.now
        if node in self._taken:
            self._failed.discard(node)
        else:
            self._failed.add(node)
        self._beats.deposited.update(self._taken)
        self._beats.show()

    async def _receive(self, member: Member, claim: DepositClaim, parts: AsyncIterator[bytes]) -> str:
        """Read a body, and add it. Returns why it is refused, or nothing."""
        try:
            async with Within(limits.CALL_S + claim.body_bytes / SLOWEST_BYTES_A_SECOND):
                body = await self._read(claim, parts)
        except asyncio.TimeoutError:
            return "the parameters arrive too slowly; send them again"
        if isinstance(body, str):
            return body
        adding = self._swarm.workers.submit(Job.ADD_DEPOSIT, self._add, member, claim, body)
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:  # the call has ended; the thread adds on, and nobody else may until it has
            await asyncio.wait([adding])
            raise

    def _why_refuse(self, member: Member, claim: DepositClaim) -> str:
        directory = self._beats.directory
        known = directory.by_node.get(member.node_id)
        if directory.phase is not Phase.COLLECTING:
            return "no parameters are asked for now"
        if known is None or not directory.runs(known) or member.node_id in self._taken:
            return "this node is no member of the newest topology, or its parameters are in the mean already"
        if claim.iteration != known.iteration or claim.iteration < self._settings.steps:
            return f"the parameters are of iteration {claim.iteration}; the node's report names {known.iteration}"
        if claim.body_bytes != 4 * self._parameters:
            return f"the parameters have {4 * self._parameters} bytes; {claim.body_bytes} are announced"
        if len(claim.head) != HASH_BYTES or len(claim.hash) != HASH_BYTES:
            return f"head and hash must have {HASH_BYTES} bytes"
        return ""

    def _check_signed(self, member: Member, claim: DepositClaim) -> None:
        contract = self._swarm.view.contract.hash
        statement = statements.deposit(contract, claim.iteration, claim.head, claim.hash)
        if not member.public_key.verifies(claim.signature, statement):
            text = "the parameters are not signed by the key of the node"
            raise ReportRefused(Denied(DoorReason.BAD_SIGNATURE, text))

    async def _read(self, claim: DepositClaim, parts: AsyncIterator[bytes]) -> npt.NDArray[np.uint8] | str:
        """The body, or why it is refused."""
        body, filled = np.empty(claim.body_bytes, np.uint8), 0
        async for part in parts:
            if filled + len(part) > len(body) or (not part and filled):
                return "more bytes came than were announced, or an empty part"
            body[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
        return body if filled == len(body) else f"the parameters end after {filled} of {len(body)} bytes"

    def _add(self, member: Member, claim: DepositClaim, body: npt.NDArray[np.uint8]) -> str:
        """Add a body to the sum, and its node to those in it: both or neither, whether or not the call still holds."""
        if hashlib.sha256(body.data).digest() != claim.hash:
            return "the parameters do not match their hash"
        x = torch.from_numpy(body.view("<f4").astype(np.float32, copy=False))
        total = torch.zeros(len(x), dtype=torch.int64) if self._sum is None else self._sum
        try:
            for start in range(0, len(x), CHUNK):
                in_integers(x[start : start + CHUNK])  # all parts, before the first changes the sum
        except LocalError as error:
            return str(error)
        for start in range(0, len(x), CHUNK):
            total[start : start + CHUNK] += in_integers(x[start : start + CHUNK])
        deposited = Deposited(member.node_id, claim.iteration, claim.head, claim.hash, claim.signature)
        self._sum, self._taken[member.node_id] = total, (deposited, member.public_key)
        return ""

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
            mean = await self._swarm.workers.once_unlocked(Job.WRITE_BEAT, self._seal)
            await self._swarm.workers.submit(Job.APPLY_UPDATE, self._sealer.show_mean, mean)
            self._beats.directory.phase = Phase.COMPLETE
            self._beats.show()
            self._sum = None
            text = f"the run is complete: the mean of {len(self._taken)} nodes is sealed{self._without()}"
            tell(log, logging.INFO, "coordinator.run_complete", text, step=self._sealer.step)
            self._swarm.sealed.set()

    def _without(self) -> str:
        """The nodes that have trained and are not in the mean, in words; nothing if there are none."""
        known, steps = self._swarm.view.members, self._settings.steps
        trained = [
            one for one in self._beats.directory.by_node.values() if one.iteration and one.node not in self._taken
        ]
        names = [
            f"{known[node].name if (node := one.node) in known else node[:8]} ({one.iteration} of {steps} iterations)"
            for one in trained[:NAMED_MAX]
        ]
        more = f" and {len(trained) - NAMED_MAX} more" if len(trained) > NAMED_MAX else ""
        return f", without {', '.join(names)}{more}" if names else ""

    def _is_due(self) -> bool:
        if not self._taken or self._waiting - self._failed:
            return False
        awaited = [one for one in self._beats.directory.entered if one.node not in self._taken]
        patience_s = max(self._settings.patience_s, self._settings.directory.lost_after_s)
        if not awaited:
            return True
        return self._swarm.view.now - self._progress > patience_s

    def _seal(self) -> Replica:
        assert self._sum is not None
        taken = sorted(self._taken.values(), key=lambda entry: entry[0].node)
        mean = _replica(self._swarm, mean_of_sum(self._sum, len(taken)))
        body = encode_deposits([deposited for deposited, _ in taken])
        counted = tuple(deposited.counted(self._swarm.view.contract.hash) for deposited, _ in taken)
        signed = [NodeSignature(key, deposited.signature) for deposited, key in taken]
        self._sealer.write_mean(mean, body, counted, signed)
        return mean


def _replica(swarm: Swarm, flat: Tensor) -> Replica:
    layout: TileLayout = swarm.view.layout
    tensors, start = {}, 0
    for tensor in layout.tensors:
        size = int(np.prod(tensor.shape, dtype=np.int64))
        tensors[tensor.name] = flat[start : start + size].view(tensor.shape)
        start += size
    return Replica(swarm.view.contract, tensors, 0, b"")
