"""Examines this machine: what a node would compute on, in which precision, how exactly, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from thinwire_node.forecast import samples_a_second
from thinwire_node.resources import ResourceLimits, Room, room_of
from thinwire_node.torch_build import unseen_card
from thinwire_node.training.device import choose_apply_device, choose_device
from thinwire_node.training.precision import compute_dtype
from thinwire_proto.contract import DemoSpec
from thinwire_proto.models import BYTE_PRESETS
from thinwire_proto.task import task_of

YARDSTICK = "byte-1m"
"""The preset whose training is timed, beside that of a run that it could join (`forecast`)."""
SAMPLES = 8


@dataclass(frozen=True)
class Examination:
    """device: of the forward and backward passes. updates_on: of what must be exact. memory_bytes, card_bytes,
    disk_bytes: what a node may use of each. tokens_s: tokens a second that it trains of YARDSTICK. torch_wanted: what
    to do about a card that torch cannot see; empty: nothing."""

    device: str
    precision: str
    updates_on: str
    memory_bytes: int
    card_bytes: int | None
    disk_bytes: int
    threads: int
    tokens_s: float
    torch: str
    torch_wanted: str


def examine(wanted: str, folder: Path) -> Examination:
    """Examine this machine for a node with this --device and state directory, which need not exist yet. Takes seconds.

    Raises ConfigError if the device cannot be used, or the CPU does not compute exactly."""
    device, _ = choose_device(wanted)
    apply, _ = choose_apply_device(DemoSpec(), device)
    room = free_room(folder, str(device))
    yardstick = BYTE_PRESETS[YARDSTICK]
    card = unseen_card() if wanted == "auto" and device.type == "cpu" else None
    return Examination(
        device=str(device),
        precision=str(compute_dtype(device)).removeprefix("torch."),
        updates_on=str(apply),
        memory_bytes=room.memory_bytes,
        card_bytes=room.device_bytes,
        disk_bytes=room.disk_bytes,
        threads=torch.get_num_threads(),
        tokens_s=samples_a_second(task_of(yardstick), yardstick, device, SAMPLES) * yardstick.context,
        torch=torch.__version__,
        torch_wanted=str(card) if card else "",
    )


def free_room(folder: Path, device: str) -> Room:
    """The room on this machine for a node with this state directory, which need not exist yet."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    return room_of(ResourceLimits(), there, device)
