"""Compares what a run needs with the memory and the disks of this machine, logs it, and warns if something is short."""

from __future__ import annotations

import logging

from thinwire_common.logs import tell
from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.access.bounds import Bounds
from thinwire_coordinator.hall.ledger.disk_forecast import ForecastOf, Need, measure
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.rpc.memory_bound import MemoryBound, OwnMemory, machine_bytes, memory_bound
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import task_of

log = logging.getLogger("thinwire.coordinator")


def frozen_parameters(contract: Contract) -> int:
    """The parameters of a run's model that are not trained: those of an adapter's base. Allocates none of them."""
    named = task_of(contract.model).model("meta").named_parameters()
    whole = sum(tensor.numel() for tensor in {id(tensor): tensor for _, tensor in named}.values())
    return max(0, whole - TileLayout(contract.parameters).parameters)


def check_memory(contract: Contract, bounds: Bounds, frozen: int, own: OwnMemory) -> MemoryBound:
    """Compute and log the bound of all memory, and warn if the machine has less. See `memory_bound`."""
    memory = memory_bound(contract, bounds, own, frozen)
    text = f"memory: {memory.in_words()}"
    tell(log, logging.INFO, "coordinator.memory_bound", text, memory_bytes=memory.total_bytes)
    if memory.total_bytes > (has := machine_bytes()):
        text = f"this machine has {human_bytes(has)} of memory, which may not be enough; lower nodes_max for a new run"
        tell(log, logging.WARNING, "coordinator.memory_small", text, memory_bytes=memory.total_bytes, machine_bytes=has)
    return memory


def check_disks(state: RunState, keep: int | None, forecast_of: ForecastOf) -> list[Need]:
    """Log how much disk space the run will take, and warn if there is too little. Return what each disk needs."""
    forecast, needs = measure(state, keep, forecast_of)
    elsewhere = None if state.bodies.folder == (state.folder / "updates").absolute() else state.bodies.location
    free = ", ".join(f"{human_bytes(need.free_bytes)} are free in {need.location}" for need in needs)
    text = f"disk: {forecast.in_words(elsewhere)}; {free}"
    tell(log, logging.INFO, "coordinator.disk_forecast", text, total_bytes=forecast.total_bytes)
    for need in needs:
        if need.short_bytes > 0:
            may = "will" if forecast.measured and forecast.is_bound else "may"
            short, location = need.short_bytes, need.location
            text = f"{location} {may} be too small: the run needs {human_bytes(short)} more than is free; make room"
            text += ", or give --keep N" if keep is None and forecast.is_bound else ""
            tell(log, logging.WARNING, "coordinator.disk_too_small", text, place=location, short_bytes=short)
    return needs
