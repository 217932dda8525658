"""Replaces a node's hardware: a trainer with synthetic votes, threads in virtual time and a state directory in memory.

All code above them is the node's own. The synthetic momentum holds sample positions instead of floats: the positions
that a node has trained on and that are in no counted contribution. The checks can then prove that every sample is
either counted once or put back, never both and never neither.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from simulator.virtual_time import Killed
from thinwire.compression.sent import Sent
from thinwire_node.star.rules import Rule
from thinwire_node.storage.blob_cache import BlobCache
from thinwire_node.storage.known_coordinators import KnownCoordinators
from thinwire_node.storage.state import Head, KeptMomentum, NodeState, PartialSnapshot, Written
from thinwire_node.training.threads import NodeJob
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS
from thinwire_proto.exact.votes import Votes
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.task import DataSource

Result = TypeVar("Result")


def scratch_folder() -> str | None:
    """The folder for the files of a simulation: in memory if possible, since syncing a real disk would dominate the
    run time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


VOTES = 40
"""Votes in a synthetic contribution, before duplicates are removed."""
CODE = 90
"""The size of all synthetic votes of a contract whose votes have sizes."""
EXTRACTION_NUMBERS = itertools.count(1)
"""Numbers of the synthetic extractions of all nodes."""
ENCODE_S = 0.02
REPLAY_S = 0.01


class SyntheticSent(Sent):
    """The votes of a synthetic extraction, which stand for sample positions.

    The magnitude of the values is the number of the extraction, so any part of it names its extraction."""

    positions: frozenset[int]

    @property
    def number(self) -> int:
        return number_of(self)

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.numpy()
        return Votes(self.components.numpy(), (self.values > 0).numpy(), codes)


def number_of(sent: Sent) -> int:
    return int(sent.values[0].abs())


class SyntheticMomentum:
    """A momentum that holds sample positions.

    dropped: positions that it held when it was forgotten. extractions: numbers of the extractions from it. left_out:
    (extraction number, components) for each time that part of an extraction was put back."""

    def __init__(self) -> None:
        self.positions: set[int] = set()
        self.dropped: set[int] = set()
        self.extractions: set[int] = set()
        self.left_out: list[tuple[int, frozenset[int]]] = []

    def put_back(self, sent: Sent) -> None:
        if isinstance(sent, SyntheticSent):
            self.positions |= sent.positions
            self.extractions.discard(sent.number)  # all of it is back
        else:
            self.left_out.append((number_of(sent), frozenset(sent.components.tolist())))

    def state(self) -> dict[str, Any]:
        return {
            "momentum": set(self.positions),
            "extractions": set(self.extractions),
            "left_out": list(self.left_out),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.positions, self.extractions = set(state["momentum"]), set(state["extractions"])
        self.left_out = list(state["left_out"])

    def forget(self) -> None:
        self.dropped |= self.positions
        self.positions.clear()
        self.extractions.clear()
        self.left_out.clear()


class SyntheticTrainer:
    """A synthetic `thinwire_node.star.work.Computes`.

    finite: False makes every micro-batch not finite. raises: True makes the next micro-batch raise."""

    def __init__(self, replica: Replica, randomness: random.Random) -> None:
        self.replica = replica
        self.synthetic = SyntheticMomentum()
        self.rule = cast(Rule, self.synthetic)
        self.samples = 0
        self.dropped = 0
        self.base_step: int | None = None
        self.compute_s = 0.0
        self.finite = True
        self.raises = False
        self._gradient: set[int] = set()
        self._rng = np.random.default_rng(randomness.getrandbits(32))
        self.trained: set[int] = set()
        self._too_old: set[int] = set()

    def adopt(self, replica: Replica) -> None:
        self.replica = replica

    def amend(self, contract: Contract) -> None:
        pass

    def refresh(self, out: Sequence[Sent] = ()) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def micro_batch(self, positions: Sequence[int]) -> None:
        if self.raises:
            raise RuntimeError("the device fell off the bus")
        if not self.finite:
            self.dropped += 1
            return
        self.trained.update(positions)
        self._gradient.update(positions)
        self.samples += len(positions)
        step = self.replica.step
        self.base_step = step if self.base_step is None else min(step, self.base_step)

    def held_out_loss(self, tensors: Mapping[str, Tensor], name: str, samples: Sequence[int]) -> float:
        return 5.0

    def extract(self, k: int) -> tuple[Sent, int, float]:
        samples = self.samples
        matrix_components = self.replica.layout.matrix_components
        components = np.array(sorted(set(self._rng.integers(0, matrix_components, VOTES).tolist())))
        number = np.float32(next(EXTRACTION_NUMBERS))
        values = np.where(self._rng.random(len(components)) < 0.5, number, -number)
        codes = None
        if self.replica.contract.demo.magnitude == "tile":
            codes = torch.full((len(np.unique(components // MATRIX_COMPONENTS)),), CODE, dtype=torch.uint8)
        sent = SyntheticSent(torch.from_numpy(components), torch.from_numpy(values), 0, codes)
        self.synthetic.extractions.add(sent.number)
        object.__setattr__(sent, "positions", frozenset(self.synthetic.positions | self._gradient))
        self.synthetic.positions.clear()
        self._gradient.clear()
        self.clear()
        return sent, samples, 5.0

    def clear(self) -> None:
        self._too_old |= self._gradient
        self._gradient.clear()
        self.samples = 0
        self.dropped = 0
        self.base_step = None

    def lost(self) -> set[int]:
        """Positions whose gradient was dropped, as the rules demand."""
        return self._too_old | self.synthetic.dropped

    def holds(self) -> set[int]:
        """Positions in the momentum or in the gradient that is not extracted yet."""
        return self.synthetic.positions | self._gradient


class VirtualThread:
    """Runs jobs in virtual time, one after another. `cost_s`: returns the time of a job."""

    def __init__(self, cost_s: Callable[[NodeJob, tuple[Any, ...]], float]) -> None:
        self._cost_s = cost_s
        self._free_at = 0.0
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self.dead = False

    def run(self, job: NodeJob, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        if self.dead:
            raise Killed
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._free_at = max(loop.time(), self._free_at) + self._cost_s(job, arguments)
        self._queue.append((future, work, arguments))
        loop.call_at(self._free_at, self._finish)
        return future

    def _finish(self) -> None:
        future, work, arguments = self._queue.popleft()  # timers of the same moment fire in any order
        if self.dead:
            if not future.done():
                future.set_exception(Killed())
                future.exception()  # marks it as retrieved: perhaps no task waits for it
            return
        try:
            result = work(*arguments)
        except Exception as error:  # noqa: BLE001 - the awaiting task gets the error, as from a thread
            if not future.cancelled():
                future.set_exception(error)
            return
        if not future.cancelled():
            future.set_result(result)

    def close(self) -> None:
        pass


class MemoryState(NodeState):
    """A node's disk in memory. It outlives the node's processes. While `frozen`, writes raise Killed."""

    def __init__(self, key: SecretKey, data: DataSource) -> None:
        self.key = key
        self.node_id = key.public.node_id
        self._data = data
        self._files: dict[str, bytes] = {}
        self._kept_replica: Replica | None = None
        self._kept_momentum: KeptMomentum | None = None
        self._passing_replica: Replica | None = None
        self._passing_momentum: KeptMomentum | None = None
        self._sent: list[bytes] = []
        self._scratch: Path | None = None
        self.blobs = BlobCache(Path("no blobs"))
        self.head: Head | None = None
        self.known = KnownCoordinators()
        self.frozen = False

    def _write(self) -> None:
        if self.frozen:
            raise Killed

    def close(self) -> None:
        if self._scratch is not None:
            for path in self._scratch.iterdir():
                path.unlink()
            self._scratch.rmdir()
            self._scratch = None

    def path(self, name: str) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(dir=scratch_folder()))
        return self._scratch / name

    def write(self, name: str, data: bytes) -> None:
        self._write()
        self._files[name] = data

    def rename(self, passing: Path, name: str) -> None:
        self.close()

    def contract(self) -> Contract | None:
        return parse_contract(self._files["contract.json"]) if "contract.json" in self._files else None

    def data(self, contract: Contract) -> DataSource | None:
        return self._data

    def forget_rows(self) -> None:
        self._write()
        self.head = self._kept_replica = None

    def replica(self, contract: Contract, *, is_mapped: bool = False) -> Replica | None:
        return self._kept_replica.clone() if self._kept_replica else None

    def write_replica(self, replica: Replica) -> Written:
        self._passing_replica = replica.clone()
        return Written(Path("replica.part"), "replica.safetensors")

    def write_momentum(self, kept: KeptMomentum) -> Written:
        self._passing_momentum = kept
        return Written(Path("momentum.part"), "momentum.safetensors")

    def publish(self, *written: Written) -> None:
        for _, name in written:
            self._write()
            if name == "replica.safetensors":
                self._kept_replica = self._passing_replica
            else:
                self._kept_momentum = self._passing_momentum

    def momentum(self, shapes: Mapping[str, tuple[int, ...]], *, is_mapped: bool = False) -> KeptMomentum | None:
        return self._kept_momentum

    def drop_momentum(self) -> None:
        self._write()
        self._kept_momentum, self._sent = None, []

    def save_sent(self, contributions: list[bytes]) -> None:
        self._write()
        self._sent = contributions

    def sent(self) -> list[bytes] | None:
        return list(self._sent)

    def partial_snapshot(self) -> PartialSnapshot | None:
        return None
