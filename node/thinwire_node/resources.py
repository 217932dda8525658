"""Checks that a contract fits into this machine: memory and disk, as the volunteer allows or as the machine has.

A contract is from a stranger. So its needs are computed from it and compared with the room, before anything is
allocated or fetched: first from the sizes that it declares, before a model is built, and then with the activations of
a forward pass.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import torch

from thinwire.compression.tile_range import tile_ranges
from thinwire_common.memory_limit import memory_limit_bytes
from thinwire_common.units import human_bytes
from thinwire_node.storage.base_files import BaseFilesHere, is_shared
from thinwire_node.storage.blob_cache import BLOBS
from thinwire_proto.contract import Contract
from thinwire_proto.contract.trained import Trained
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.model_memory import gathered_bytes, memories_of, memory_of
from thinwire_proto.models import check_manifest
from thinwire_proto.needs import (
    CACHE_BYTES_MIN,
    PROGRAM_BYTES,
    SNAPSHOT_BYTES_A_PARAMETER,
    own_moments_bytes,
    samples_at_once,
    state_disk_bytes,
    trained_bytes,
)
from thinwire_proto.pass_memory import SHARE_OF_CARD, ModelMemory, Pass, card_words
from thinwire_proto.task import data_kind_of, task_of

SHARE_OF_MACHINE = 0.9
"""The part of the machine's memory, or of the free disk, that a node uses by default. A need above it would end in swap
or with a full disk."""
LEAST_OF_FILES = 8
"""A base in the fewest bits takes at least this part of its files: 4 bits of 32."""
MOMENTS_ON_HOST = "the card is too small for momentum and moments, so they are in this machine's memory"
NINE_TENTHS = "nine tenths of it"
GPU_PROGRAM_BYTES = 2_000_000_000
"""The program with CUDA's or ROCm's libraries in memory."""


@dataclass(frozen=True)
class ResourceLimits:
    """The volunteer's bounds, in bytes. None: SHARE_OF_MACHINE of what there is."""

    memory_max: int | None = None
    disk_max: int | None = None


@dataclass(frozen=True)
class Room:
    """The memory and disk that a node may use, each with its origin in words. device: of a GPU's memory, or None.
    of_several: whether it is of each process of a node of several, which divide momentum and moments."""

    memory_bytes: int
    memory_from: str
    disk_bytes: int
    disk_from: str
    device_bytes: int | None = None
    of_several: bool = False


@dataclass(frozen=True)
class Needs:
    """The memory and disk that a contract takes, in bytes. parameters: their values alone. gathered: what a process
    holds of others at most, with its gradients, if none holds the whole model. moments: the part of `trained` that need
    not be on a card. model: beside what is trained. data_disk, cache_disk: the file of the data, and the least room for
    their shards."""

    parameters: int
    gathered: int
    trained: int
    moments: int
    data: int
    state_disk: int
    base_disk: int
    data_disk: int
    cache_disk: int
    model: ModelMemory = field(default_factory=ModelMemory)

    @property
    def disk(self) -> int:
        return self.state_disk + self.base_disk + self.data_disk + self.cache_disk


def check_contract(
    contract: Contract, room: Room, samples_max: int, shards: int = 1, base_bits: int | None = None
) -> tuple[Needs, Pass]:
    """Check that a contract describes its model, and fits into the room: see `check_declared` and `fit_measured`."""
    check_declared(contract, room, samples_max, shards)
    return fit_measured(contract, room, samples_max, shards, base_bits)


def check_declared(contract: Contract, room: Room, samples_max: int, shards: int = 1) -> None:
    """Check that what a contract declares fits into the room, and then that it describes its model. shards: the
    processes that divide the model. Raises LocalError or ContractError."""
    check_needs(contract, declared_needs(contract), room, samples_max, shards)
    check_manifest(contract)


def fit_measured(
    contract: Contract, room: Room, samples_max: int, shards: int = 1, base_bits: int | None = None
) -> tuple[Needs, Pass]:
    """Find what a contract needs, and the largest pass that fits into the room, of at most so many samples. Requires
    `check_declared`.

    shards: the processes that divide the model. base_bits: of a parameter of the model's frozen base, if it has one;
    None: as many as fit, with checkpoints if need be. Takes seconds for a large model. Raises LocalError."""
    widths = task_of(contract.model).base_bits
    if base_bits is not None and widths:
        widths = (min(base_bits, widths[0]),)
    for bits in widths[:-1]:
        needs = measured_needs(contract, bits)
        try:
            return needs, check_needs(contract, needs, room, samples_max, shards)
        except LocalError:
            continue  # with fewer bits
    needs = measured_needs(contract, widths[-1] if widths else None)
    return needs, check_needs(contract, needs, room, samples_max, shards)


def cache_bound(cache_bytes: int, base_bytes: int, left_bytes: int) -> int:
    """The bound on the blobs of a run, in bytes. cache_bytes: the volunteer's, for data and base together, or for the
    data alone if the base leaves no room in it. left_bytes: all that the disk has for blobs."""
    data_bytes = cache_bytes - base_bytes
    return min(base_bytes + (data_bytes if data_bytes >= CACHE_BYTES_MIN else cache_bytes), left_bytes)


def room_of(limits: ResourceLimits, folder: Path, device: str, processes: int = 1) -> Room:
    """The room on this machine for a node with this state directory and device, or for one of its processes here."""
    memory, memory_from = memory_room(limits.memory_max, processes)
    if limits.disk_max is not None:
        disk, disk_from = limits.disk_max, "--max-disk"
    else:
        free, own = shutil.disk_usage(folder).free, _size_of(folder)
        disk, disk_from = own + int(SHARE_OF_MACHINE * free), f"{human_bytes(free)} are free in {folder}"
    return Room(memory, memory_from, disk, disk_from, card_room(device))


def memory_room(memory_max: int | None, processes: int) -> tuple[int, str]:
    """The memory of this machine for one of a node's processes here, and its origin in words."""
    whole = machine_memory_bytes()
    if memory_max is not None:
        memory, memory_from = memory_max, "--max-memory"
    else:
        memory, memory_from = int(SHARE_OF_MACHINE * whole), f"nine tenths of the {human_bytes(whole)} here"
    if processes > 1:
        memory, memory_from = memory // processes, f"{memory_from}, divided among {processes} processes"
    return memory, memory_from


def card_room(device: str) -> int | None:
    """The memory of a card for a node; None: the device has none of its own."""
    if not device.startswith(("cuda", "xpu")):
        return None
    cards = torch.cuda if device.startswith("cuda") else torch.xpu
    return int(SHARE_OF_CARD * cards.get_device_properties(device).total_memory)


def least_room(room: Room, others: Sequence[tuple[int, int | None]]) -> Room:
    """The room that each process of a node has. room: of its first one. others: see `Ranks.rooms`."""
    for number, (memory, card) in enumerate(others, 1):
        if memory < room.memory_bytes:
            room = replace(room, memory_bytes=memory, memory_from=f"of process {number}, which has the least")
        if card is not None and room.device_bytes is not None:
            room = replace(room, device_bytes=min(card, room.device_bytes))
    return room


def with_base_here(room: Room, contract: Contract, state_dir: Path, bases: Path | None) -> Room:
    """The room with as much more disk as files of the frozen base take none of, because this machine has them already.
    bases: see `BaseFilesHere`."""
    names = task_of(contract.model).blob_names()
    others = BaseFilesHere(bases).bytes_of_others(names, state_dir / BLOBS)
    return replace(room, disk_bytes=room.disk_bytes + others)


def machine_memory_bytes() -> int:
    """The memory of this machine, or the bound of this process's container or service if that is smaller."""
    whole: int = psutil.virtual_memory().total
    limit = memory_limit_bytes()
    return whole if limit is None else min(whole, limit)


def declared_needs(contract: Contract) -> Needs:
    """The needs as far as the contract declares them. Builds nothing."""
    layout = layout_of(contract.parameters)
    trained = Trained(layout.parameters, layout.matrix_tiles, layout.vector_tiles)
    kind = data_kind_of(contract.data)
    base = sum(blob.size for blob in task_of(contract.model).blobs())
    return Needs(
        parameters=SNAPSHOT_BYTES_A_PARAMETER * layout.parameters,
        gathered=0,
        trained=trained_bytes(contract, trained),
        moments=own_moments_bytes(contract, trained),
        data=kind.memory_bytes(contract.data),
        state_disk=state_disk_bytes(contract, trained),
        base_disk=base,
        data_disk=kind.file_bytes_max(contract.data),
        cache_disk=CACHE_BYTES_MIN if kind.has_blobs else 0,
        model=ModelMemory(frozen=base // LEAST_OF_FILES),
    )


def measured_needs(contract: Contract, base_bits: int | None = None) -> Needs:
    """The needs with the frozen parameters, buffers and activations of the model. Builds it without its memory, which
    may take seconds. Requires that the contract's manifest is that of the model. base_bits: one of the task's; None:
    the first of them."""
    task, declared = task_of(contract.model), declared_needs(contract)
    if widths := task.base_bits:
        return replace(declared, model=memory_of(contract.model, base_bits or widths[0]))
    return replace(declared, gathered=gathered_bytes(task.model("meta")), model=memory_of(contract.model))


def cards_that_train(contract: Contract) -> str:
    """`card_words` in one sentence. Takes seconds for a large model."""
    layout = layout_of(contract.parameters)
    trained = Trained(layout.parameters, layout.matrix_tiles, layout.vector_tiles)
    words = card_words(contract, trained, memories_of(contract.model))
    return "; ".join(f"{card}: {how}" for card, how in words.items())


def check_needs(contract: Contract, needs: Needs, room: Room, samples_max: int, shards: int = 1) -> Pass:
    """The largest pass that fits into the room, of at most so many samples. shards: see `check_contract`.

    Raises LocalError, with the figures and what to do, if not even a single sample with checkpoints does."""
    together = needs.trained // 2 if room.of_several else 0  # what the processes divide, while it is saved
    if needs.disk + together > room.disk_bytes:
        own, data = needs.state_disk + together, needs.data_disk + needs.cache_disk
        raise LocalError(
            f"this run needs {human_bytes(needs.disk + together)} of disk space (state {human_bytes(own)}, base "
            f"{human_bytes(needs.base_disk)}, data {human_bytes(data)}); the node may use "
            f"{human_bytes(room.disk_bytes)} ({room.disk_from}): free some space, or give a larger --max-disk or "
            "another --state-dir"
        )
    model, samples = needs.model, samples_at_once(contract, samples_max)
    room_bytes, room_from = room.memory_bytes, room.memory_from
    frozen = "frozen" if model.bits is None else f"a base of {model.bits} bits"
    state = {"parameters and momentum": needs.trained}
    copies = {"copies of parameters and momentum": needs.trained // 2}
    if shards > 1:  # a pass always checkpoints
        share = _largest_share(contract, shards)
        state = {"parameters and momentum": int(needs.trained * share), "a layer of the whole model": needs.gathered}
        model = replace(model, activations=model.activations.always_checkpointed)
        # on the processor: kept for a held-out loss, and the leader's while another's share of the momentum comes
        copies = {"copies of a share of parameters and momentum": int((needs.parameters + needs.trained // 2) * share)}
    if room.device_bytes is None:
        held = {"the program": PROGRAM_BYTES, "data": needs.data, **state, **(copies if shards > 1 else {})}
        held[frozen] = max(model.frozen, model.loading)
        return _largest_pass(model, held, "memory", room_bytes, room_from, samples)
    held = {"the program": GPU_PROGRAM_BYTES, "data": needs.data, **copies, "the base while it is read": model.loading}
    _largest_pass(ModelMemory(), held, "memory", room_bytes, room_from, samples)
    of_card = partial(_largest_pass, what="the GPU's memory", room_bytes=room.device_bytes, room_from=NINE_TENTHS)
    try:
        return of_card(model, {**state, frozen: model.frozen}, samples=samples)
    except LocalError:
        if not needs.moments or room.of_several:
            raise
    held["momentum and moments"] = needs.moments
    _largest_pass(ModelMemory(), held, "memory", room_bytes, room_from, samples)
    state = {"parameters and gradients": needs.trained - needs.moments, frozen: model.frozen}
    return replace(of_card(model, state, samples=samples), moments_on_host=True)


def _largest_share(contract: Contract, shards: int) -> float:
    """The part of the parameters that the process with the most of them holds."""
    layout = layout_of(contract.parameters)
    ranges = tile_ranges(layout, shards, contract.rule.undivided(contract.parameters))
    return max(one.layout.parameters for one in ranges) / layout.parameters


def _largest_pass(
    model: ModelMemory, held: dict[str, int], what: str, room_bytes: int, room_from: str, samples: int
) -> Pass:
    """See `check_needs`. held: the needs beside a pass, in words and bytes. Activations that are not known count as
    none."""
    largest = model.largest_pass(room_bytes - sum(held.values()), samples)
    if largest is not None:
        return largest
    parts = [f"{name} {human_bytes(size)}" for name, size in held.items() if size]
    if model.least:
        parts.append(f"one sample with checkpoints {human_bytes(model.least)}")
    raise LocalError(
        f"this run needs {human_bytes(sum(held.values()) + model.least)} of {what} ({', '.join(parts)}); the node may "
        f"use {human_bytes(room_bytes)} ({room_from}): take part with a larger machine, or raise --max-memory if you "
        "know better"
    )


def _size_of(folder: Path) -> int:
    """Bytes of the files below a folder that are nowhere else too."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                path = Path(place) / name
                total += 0 if is_shared(path) else path.stat().st_size
            except OSError:
                continue
    return total
