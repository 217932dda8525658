"""Checks that a contract fits into this machine: memory and disk, as the volunteer allows or as the machine has.

A contract is from a stranger. So its needs are computed from it and compared with the room, before anything is
allocated or fetched: first from the sizes that it declares, before a model is built, and then with the activations of
a forward pass.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from thinwire_common.memory_limit import memory_limit_bytes
from thinwire_common.units import human_bytes
from thinwire_proto.activations import activation_bytes
from thinwire_proto.contract import Contract
from thinwire_proto.contract.trained import Trained
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import check_manifest
from thinwire_proto.needs import (
    CACHE_BYTES_MIN,
    FROZEN_BYTES_A_PARAMETER,
    PROGRAM_BYTES,
    samples_at_once,
    state_disk_bytes,
    trained_bytes,
)
from thinwire_proto.task import data_kind_of, task_of

SHARE_OF_MACHINE = 0.9
"""The part of the machine's memory, or of the free disk, that a node uses by default. A need above it would end in swap
or with a full disk."""
GPU_PROGRAM_BYTES = 2_000_000_000
"""The program with CUDA's or ROCm's libraries in memory."""


@dataclass(frozen=True)
class ResourceLimits:
    """The volunteer's bounds, in bytes. None: SHARE_OF_MACHINE of what there is."""

    memory_max: int | None = None
    disk_max: int | None = None


@dataclass(frozen=True)
class Room:
    """The memory and disk that a node may use, each with its origin in words. device: of a GPU's memory, or None."""

    memory_bytes: int
    memory_from: str
    disk_bytes: int
    disk_from: str
    device_bytes: int | None = None


@dataclass(frozen=True)
class Needs:
    """The memory and disk that a contract takes, in bytes. activations: of one sample; 0 if it is not known. data_disk,
    cache_disk: the file of the data, and the least room for their shards."""

    trained: int
    frozen: int
    data: int
    activations: int
    state_disk: int
    base_disk: int
    data_disk: int
    cache_disk: int

    @property
    def disk(self) -> int:
        return self.state_disk + self.base_disk + self.data_disk + self.cache_disk


def check_contract(contract: Contract, room: Room, micro_batch: int) -> Needs:
    """Check that a contract fits into the room, and that it describes its model. Returns what it needs.

    Takes seconds for a large model. Raises LocalError or ContractError."""
    check_needs(contract, declared_needs(contract), room, micro_batch)
    check_manifest(contract)
    needs = measured_needs(contract)
    check_needs(contract, needs, room, micro_batch)
    return needs


def cache_bound(cache_bytes: int, base_bytes: int, left_bytes: int) -> int:
    """The bound on the blobs of a run, in bytes. cache_bytes: the volunteer's, for data and base together, or for the
    data alone if the base leaves no room in it. left_bytes: all that the disk has for blobs."""
    data_bytes = cache_bytes - base_bytes
    return min(base_bytes + (data_bytes if data_bytes >= CACHE_BYTES_MIN else cache_bytes), left_bytes)


def room_of(limits: ResourceLimits, folder: Path, device: str) -> Room:
    """The room on this machine for a node with this state directory and device."""
    whole = machine_memory_bytes()
    if limits.memory_max is not None:
        memory, memory_from = limits.memory_max, "--memory-max"
    else:
        memory, memory_from = int(SHARE_OF_MACHINE * whole), f"nine tenths of the {human_bytes(whole)} here"
    if limits.disk_max is not None:
        disk, disk_from = limits.disk_max, "--disk-max"
    else:
        free, own = shutil.disk_usage(folder).free, _size_of(folder)
        disk, disk_from = own + int(SHARE_OF_MACHINE * free), f"{human_bytes(free)} are free in {folder}"
    on_card = None
    if device.startswith("cuda"):
        on_card = int(SHARE_OF_MACHINE * torch.cuda.get_device_properties(device).total_memory)
    return Room(memory, memory_from, disk, disk_from, on_card)


def machine_memory_bytes() -> int:
    """The memory of this machine, or the bound of this process's container or service if that is smaller."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        whole = 1 << 40  # not known here: only --memory-max bounds it
    limit = memory_limit_bytes()
    return whole if limit is None else min(whole, limit)


def declared_needs(contract: Contract) -> Needs:
    """The needs as far as the contract declares them. Builds nothing."""
    layout = layout_of(contract.parameters)
    trained = Trained(layout.parameters, layout.matrix_tiles, layout.vector_tiles)
    kind = data_kind_of(contract.data)
    base = sum(blob.size for blob in task_of(contract.model).blobs())
    return Needs(
        trained=trained_bytes(contract, trained),
        frozen=base,  # at least: a base in 16 bits may take twice that
        data=kind.memory_bytes(contract.data),
        activations=0,
        state_disk=state_disk_bytes(contract, trained),
        base_disk=base,
        data_disk=kind.file_bytes_max(contract.data),
        cache_disk=CACHE_BYTES_MIN if kind.has_blobs else 0,
    )


def measured_needs(contract: Contract) -> Needs:
    """The needs with the frozen parameters, buffers and activations of the model. Builds it without its memory, which
    may take seconds. Requires that the contract's manifest is that of the model."""
    task, declared = task_of(contract.model), declared_needs(contract)
    model = task.model("meta")
    tensors = {id(tensor): tensor for _, tensor in model.named_parameters()}
    frozen = sum(tensor.numel() for tensor in tensors.values() if not tensor.requires_grad)
    buffers = sum(tensor.nbytes for module in model.modules() for tensor in module.buffers(recurse=False))
    return replace(
        declared,
        frozen=max(declared.frozen, FROZEN_BYTES_A_PARAMETER * frozen) + buffers,
        activations=activation_bytes(task, contract.model),
    )


def check_needs(contract: Contract, needs: Needs, room: Room, micro_batch: int) -> None:
    """Raise LocalError, with the figures and what to do, if a contract does not fit into the room."""
    if needs.disk > room.disk_bytes:
        data = needs.data_disk + needs.cache_disk
        raise LocalError(
            f"this run needs {human_bytes(needs.disk)} of disk space (state {human_bytes(needs.state_disk)}, base "
            f"{human_bytes(needs.base_disk)}, data {human_bytes(data)}); the node may use "
            f"{human_bytes(room.disk_bytes)} ({room.disk_from}): free some space, or give a larger --disk-max or "
            "another --state-dir"
        )
    state = {"parameters and momentum": needs.trained, "frozen": needs.frozen}
    samples = samples_at_once(contract, micro_batch)
    if room.device_bytes is None:
        held = {"the program": PROGRAM_BYTES, "data": needs.data, **state}
    else:
        _check_memory(needs, state, "the GPU's memory", room.device_bytes, "nine tenths of it", samples)
        copies = {"copies of parameters and momentum": needs.trained // 2, "frozen": needs.frozen}  # to save and load
        held, samples = {"the program": GPU_PROGRAM_BYTES, "data": needs.data, **copies}, 0
    _check_memory(needs, held, "memory", room.memory_bytes, room.memory_from, samples)


def _check_memory(needs: Needs, held: dict[str, int], what: str, room_bytes: int, room_from: str, samples: int) -> None:
    """held: the needs beside those of `samples` samples at once, in words and bytes."""
    without = sum(held.values())
    if (need := without + samples * needs.activations) <= room_bytes:
        return
    parts = [f"{name} {human_bytes(size)}" for name, size in held.items() if size]
    smaller = ""
    if needs.activations and samples:
        parts.append(f"{samples} samples at once {human_bytes(samples * needs.activations)}")
        fits = (room_bytes - without) // needs.activations
        smaller = f"give --micro-batch {fits}, or " if 0 < fits < samples else ""
    elif samples:
        parts.append("and samples, which are not counted yet")
    raise LocalError(
        f"this run needs {human_bytes(need)} of {what} ({', '.join(parts)}); the node may use "
        f"{human_bytes(room_bytes)} ({room_from}): {smaller}take part with a larger machine, or raise --memory-max if "
        "you know better"
    )


def _size_of(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                continue
    return total
