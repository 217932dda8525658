"""The entrance to a swarm over gRPC, which all exchanges with a coordinator share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.clock import ProbedClock
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import Admission, Applicant, EvaluationPart
from thinwire_node.runtime import Clocks
from thinwire_node.storage.state import PartialSnapshot
from thinwire_proto.blobs import Blob
from thinwire_proto.contract import Contract
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.limits import probe_every_s


class Entrance:
    """The implementation of `thinwire_node.exchange.port.Entrance`. connect: opens the link, before `join`."""

    def __init__(self, connect: Callable[[], Awaitable[Link]], clocks: Clocks, invite: Invite | None = None) -> None:
        self._connect = connect
        self._opened: Link | None = None
        self._invite = invite
        self._clocks = clocks
        self._clock: ProbedClock | None = None
        self._key: SecretKey | None = None

    @property
    def _link(self) -> Link:
        assert self._opened is not None
        return self._opened

    @property
    def clock(self) -> ProbedClock:
        assert self._clock is not None
        return self._clock

    async def join(self, applicant: Applicant) -> Admission:
        self._key = applicant.key
        momentum = messages.momentum_message(applicant.momentum)
        self._opened = await self._connect()
        reply = await self._link.join(
            applicant.key,
            self._invite,
            applicant.contract,
            applicant.name,
            applicant.head,
            applicant.replica_step,
            momentum,
        )
        admission = messages.admission(reply)
        self._clock = ProbedClock(self._link, self._clocks, probe_every_s(admission.contract.round.length_s))
        return admission

    async def corpus(self, contract: Contract) -> bytes:
        return await self._link.corpus(contract)

    async def blob(self, blob: Blob, path: Path) -> None:
        await self._link.blob(blob, path)

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        return await self._link.snapshot(folder, contract, begun)

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        await self._link.evaluated(messages.evaluation_part(part), loss)

    async def leave(self, trained_through: int | None) -> None:
        await self._link.leave(trained_through)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
