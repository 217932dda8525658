"""Compares what a run needs with the memory and the disks of this machine, logs it, and warns if something is short.

The memory is known before the coordinator listens, whatever arrives. What strangers and nodes can make it hold is
bounded in `access.admission`, in `OwnMemory` of its kind of exchange, and here. The rest is the model. Figures that no
contract gives were measured (docs/operating.md). The disk space follows from the sealed bodies or, before the first
one, from what the kind of exchange knows.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_common.memory_limit import memory_limit_bytes
from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.access.admission import Bounds
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.rpc.files import FILE_PART_BYTES, FILE_PARTS_MAX
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX, REQUEST_BYTES_MAX
from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import REWIND, Amendment
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import amended
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import task_of

log = logging.getLogger("thinwire.coordinator")


def frozen_bytes(contract: Contract, blobs: Blobs) -> int:
    """Memory of the parameters of a run's model that are not trained: an adapter's base, in the dtype that loses
    nothing of its files. Allocates none of them."""
    task = task_of(contract.model)
    named = task.model("meta").named_parameters()
    whole = sum(tensor.numel() for tensor in {id(tensor): tensor for _, tensor in named}.values())
    parameters = max(0, whole - TileLayout(contract.parameters).parameters)
    if not (paths := [blobs.path(blob) for blob in task.blobs()]):
        return FROZEN_BYTES_A_PARAMETER * parameters
    from thinwire_proto.models.frozen_base import dtype_of_files  # noqa: PLC0415 - needs transformers

    return dtype_of_files(paths).itemsize * parameters


def after_orders(contract: Contract, orders: Iterable[Order]) -> Contract:
    """The contract as it will be when the orders that wait hold too; without those that it cannot have."""
    begun = {one.id for one in contract.amendments}
    for order in sorted((one for one in orders if one.id not in begun), key=lambda one: one.at or 0):
        last = contract.amendments[-1] if contract.amendments else Amendment(0, {})
        changes = {key: value for key, value in order.changes.items() if key != REWIND}
        with suppress(ContractError):
            contract = amended(contract, Amendment(max(order.at or 0, last.step + 1), changes, position=last.position))
    return contract


def check_memory(contract: Contract, bounds: Bounds, frozen: int, own: OwnMemory) -> MemoryBound:
    """Compute and log the bound of all memory, and warn if the machine has less. See `memory_bound`."""
    memory = memory_bound(contract, bounds, own, frozen)
    text, has = f"memory: {memory.in_words()}", machine_bytes()
    tell(log, logging.INFO, "coordinator.memory_bound", text, memory_bytes=memory.total_bytes, machine_bytes=has)
    if memory.total_bytes > has:
        text = f"this machine has {human_bytes(has)} of memory, which may not be enough; lower nodes_max for a new run"
        log.warning("%s", text)
    return memory


def check_disks(state: RunState, keep: int | None, forecast_of: ForecastOf) -> list[Need]:
    """Log how much disk space the run will take, and warn if there is too little. Return what each disk needs."""
    forecast, needs = measure(state, keep, forecast_of)
    elsewhere = None if state.bodies.folder == (state.folder / "updates").absolute() else state.bodies.location
    free = ", ".join(f"{human_bytes(need.free_bytes)} are free in {need.location}" for need in needs)
    text = f"disk: {forecast.in_words(elsewhere)}; {free}"
    short_bytes = max(0, *(need.short_bytes for need in needs))
    tell(
        log, logging.INFO, "coordinator.disk_forecast", text, total_bytes=forecast.total_bytes, short_bytes=short_bytes
    )
    for need in needs:
        if need.short_bytes > 0:
            may = "will" if forecast.measured and forecast.is_bound else "may"
            short, location = need.short_bytes, need.location
            text = f"{location} {may} be too small: the run needs {human_bytes(short)} more than is free; make room"
            text += ", or give --keep N" if keep is None and forecast.is_bound else ""
            log.warning("%s", text)
    return needs


PROGRAM_BYTES = 350_000_000
"""Interpreter, torch for the CPU, gRPC: what a program holds with a tiny model (VmHWM in a small swarm)."""
MODEL_BYTES_A_PARAMETER = 6
"""Above the measured peak (docs/performance.md), without the sums: the replica, and a tensor that is measured."""
FROZEN_BYTES_A_PARAMETER = 4
CONNECTION_BYTES = 128 << 10
"""gRPC's state of a connection with TLS, and a window of 64 KiB that nobody has read."""
CALL_BYTES = 32 << 10
"""An open call, in gRPC and as a task."""
COPIES = 3
"""Of a message while it is sent or received: ours, the serialized one, and gRPC's."""
TABLES_BYTES = 96 << 20
"""Token buckets, answered challenges, counts of nodes, members, histories: each table has a greatest length."""
ALLOCATOR = 1.25
"""Memory that the allocator keeps beside what is used, as a factor."""


@dataclass(frozen=True)
class OwnMemory:
    """What a kind of exchange takes beside what any run does, in bytes. part: the largest message that a node sends.
    model: beside the replica. named: the rest, by what it is for."""

    part: int
    model: int
    named: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return self.part + self.model + sum(self.named.values())


@dataclass(frozen=True)
class MemoryBound:
    """In bytes, by what it is for; `program` is what the process has before anything arrives."""

    named: dict[str, int]

    @property
    def total_bytes(self) -> int:
        held = sum(self.named.values()) - self.named["program"]
        return self.named["program"] + round(ALLOCATOR * held)

    def in_words(self) -> str:
        parts = ", ".join(f"{name} {human_bytes(bytes_)}" for name, bytes_ in self.named.items() if bytes_)
        return f"at most {human_bytes(self.total_bytes)} whatever arrives: {parts}"


def machine_bytes() -> int:
    """Memory of this machine, or of its container or service if that has less."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
    limit = memory_limit_bytes()
    return most if limit is None else min(most, limit)


def memory_bound(contract: Contract, bounds: Bounds, own: OwnMemory, frozen: int = 0) -> MemoryBound:
    """The bound of a run. own: of its kind of exchange. frozen: see `frozen_bytes`."""
    layout, nodes = TileLayout(contract.parameters), contract.round.nodes_max
    model = MODEL_BYTES_A_PARAMETER * layout.parameters + frozen + own.model
    message = own.part + HEADER_BYTES_MAX
    common = {
        "program": PROGRAM_BYTES,
        "model": model,
        "requests": (COPIES - 1) * (nodes * message + bounds.strangers_calls_max * REQUEST_BYTES_MAX),
        "files": COPIES * FILE_PARTS_MAX * FILE_PART_BYTES,
        "connections": bounds.connections_max * CONNECTION_BYTES + bounds.calls_max * CALL_BYTES,
        "tables": TABLES_BYTES,
    }
    return MemoryBound(common | own.named)


ROW_BYTES = 2688
"""Size of a row with ten contributions, including signatures and its share of the receipt index (measured: 2.6 kB)."""
COPIES_MAX = 3
"""Files of the replica that are measured by the coordinator, by nodes, or audited, and deleted afterwards."""


@dataclass(frozen=True)
class Forecast:
    """The peak disk usage of the run, in bytes."""

    snapshot_bytes: int
    """Size of one snapshot."""
    update_bytes: int
    """Size of one body: the mean of the sealed ones, or the bound or estimate if there are none."""
    measured: bool
    """Whether update_bytes is a mean."""
    snapshots: int
    snapshots_bytes: int
    updates_bytes: int
    rows_bytes: int
    body: str
    """What a body is, in words."""
    bodies: str
    """What the kept bodies are, in words."""
    is_bound: bool = True
    """Whether the run cannot take more, whatever its nodes do."""

    @property
    def total_bytes(self) -> int:
        return self.snapshots_bytes + self.updates_bytes + self.rows_bytes

    def in_words(self, elsewhere: str | None) -> str:
        """elsewhere: the address of the bodies, if they are not in the state directory."""
        size = human_bytes(self.update_bytes)
        about = "at most" if self.is_bound else "about"
        size = f"{size} on average so far" if self.measured else f"{about} {size}"
        most = ("" if self.measured else "at most ") if self.is_bound else "at most about "
        kept = f"{self.snapshots} snapshots and {self.bodies}"
        text = f"a snapshot is {human_bytes(self.snapshot_bytes)}, {self.body} {size}; the run will take {most}"
        if elsewhere is None:
            return f"{text}{human_bytes(self.total_bytes)} ({kept})"
        here_bytes = self.snapshots_bytes + self.rows_bytes
        return f"{text}{human_bytes(here_bytes)}, and {most}{human_bytes(self.updates_bytes)} at {elsewhere} ({kept})"


@dataclass(frozen=True)
class Sealed:
    """What a forecast follows from: the size of a snapshot, and the number and size of the bodies that are sealed.

    keep: see `retention`."""

    snapshot_bytes: int
    bodies: int
    bodies_bytes: int
    keep: int | None = None


ForecastOf = Callable[[Contract, Sealed], Forecast]
"""Predicts the peak disk usage of a run."""


@dataclass(frozen=True)
class Need:
    """The space that the run needs on one disk, the part of it that exists already, and the free space, in bytes."""

    location: str
    total_bytes: int
    there_bytes: int
    free_bytes: int

    @property
    def short_bytes(self) -> int:
        """The bytes that are lacking; 0 or less if the run fits."""
        return self.total_bytes - self.there_bytes - self.free_bytes


def measure(state: RunState, keep: int | None, forecast_of: ForecastOf) -> tuple[Forecast, list[Need]]:
    """Return the forecast of a run and what each of its local disks needs."""
    ledger, steps = state.watch_ledger, state.snapshot_steps()
    snapshot_bytes, sealed = state.snapshot_path(steps[-1]).stat().st_size, ledger.step
    forecast = forecast_of(state.contract, Sealed(snapshot_bytes, sealed, ledger.body_bytes_since(0), keep))
    here = Need(
        str(state.folder),
        forecast.snapshots_bytes + forecast.rows_bytes + COPIES_MAX * snapshot_bytes,
        snapshot_bytes * len(steps) + ROW_BYTES * sealed,
        shutil.disk_usage(state.folder).free,
    )
    folder = state.bodies.folder
    if folder is None:
        return forecast, [here]
    kept_bytes = ledger.body_bytes_since(steps[0])
    if folder.stat().st_dev == state.folder.stat().st_dev:
        both = Need(
            here.location, here.total_bytes + forecast.updates_bytes, here.there_bytes + kept_bytes, here.free_bytes
        )
        return forecast, [both]
    there = Need(str(folder), forecast.updates_bytes, kept_bytes, shutil.disk_usage(folder).free)
    return forecast, [here, there]
