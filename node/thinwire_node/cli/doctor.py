"""The command `thinwire-node doctor`: whether this machine can take part in a run, and what would help."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_node.cli.options import DoctorOptions
from thinwire_node.exchange.coordinator.reach import Reached, reach
from thinwire_node.exchange.port import Refused
from thinwire_node.forecast import Forecast, forecast, samples_a_second
from thinwire_node.resources import MOMENTS_ON_HOST, ResourceLimits, Room, room_of, with_base_here
from thinwire_node.storage.base_files import users_folder
from thinwire_node.storage.enrolment import FILE, choose, read_destination
from thinwire_node.training.device import choose_apply_device, choose_device, compute_dtype, unseen_card
from thinwire_proto.contract import DemoSpec
from thinwire_proto.errors import RemoteError
from thinwire_proto.identity.keys import KEY_FILE, SecretKey, open_key
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


@dataclass(frozen=True)
class Diagnosis:
    """The findings. coordinator: None if none was asked. run: None if the coordinator did not tell the contract.
    problem: why it could not be asked; empty: nothing."""

    machine: Examination
    coordinator: Reached | None
    run: Forecast | None
    problem: str


def diagnose(options: DoctorOptions) -> Diagnosis:
    """Examine the machine, and the way to the coordinator if an invite is given or kept.

    Raises UsageError, or ConfigError if a node could not compute on this machine."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    given = read_destination(options.invite) if options.invite is not None else None
    has_enrolled = (options.state_dir / FILE).exists()
    destination = choose(options.state_dir, given) if given or has_enrolled else None
    reached, problem = None, ""
    if destination is not None:
        try:
            reached = asyncio.run(reach(destination.address, destination.invite, _key(options.state_dir)))
        except (RemoteError, Refused) as error:
            problem = str(error)
    folder = options.state_dir.absolute()
    machine, run = examine(options.device, folder), None
    if reached is not None and (examined := reached.examined) is not None:
        line, device = examined.line, torch.device(machine.device)
        room = with_base_here(free_room(folder, machine.device), examined.contract, folder, users_folder())
        run = forecast(examined.contract, room, device, line.up_bits_s, line.down_bits_s, reached.nodes_active)
    return Diagnosis(machine, reached, run, problem)


def _key(folder: Path) -> SecretKey:
    """The key of the node in a state directory; a new one, which is not kept, if there is none."""
    path = folder / KEY_FILE
    return open_key(path) if path.exists() else SecretKey()


def examined(options: DoctorOptions, *, as_json: bool) -> None:
    """Print the findings. Raises RemoteError after it if the coordinator could not be asked; see `diagnose`."""
    found = diagnose(options)
    if as_json:
        print(json.dumps(document_of(found), indent=2))
    else:
        print("\n".join(in_words(found)))
    if found.problem:
        raise RemoteError(found.problem)


def document_of(found: Diagnosis) -> dict[str, Any]:
    """The findings as JSON. `coordinator.line` is None if it was not measured; the contract is not repeated."""
    coordinator = None
    if found.coordinator is not None:
        examined = found.coordinator.examined
        coordinator = asdict(replace(found.coordinator, examined=None))
        del coordinator["examined"]
        coordinator["line"] = asdict(examined.line) if examined is not None else None
    run = asdict(found.run) if found.run is not None else None
    return {"machine": asdict(found.machine), "coordinator": coordinator, "run": run, "problem": found.problem}


def in_words(found: Diagnosis) -> list[str]:
    machine, reached, run = found.machine, found.coordinator, found.run
    memory, disk = human_bytes(machine.memory_bytes), human_bytes(machine.disk_bytes)
    card = f", {human_bytes(machine.card_bytes)} on the card" if machine.card_bytes is not None else ""
    lines = [
        f"computes on {machine.device} in {machine.precision} (torch {machine.torch}, {machine.threads} threads)",
        f"updates are applied on {machine.updates_on}, where the self-test found every bit as it must be",
        f"a run may use {memory} of memory{card} and {disk} of disk",
        f"trains {human_count(round(machine.tokens_s))} tokens/s of {YARDSTICK}; larger models take longer for each",
    ]
    if machine.torch_wanted:
        lines.append(machine.torch_wanted)
    if reached is not None:
        lines += [
            f"the coordinator answered within {1000 * reached.round_trip_s:.0f} ms and proved its key; the invite "
            "keeps all its uses",
            f"its run: step {reached.step:,} of {reached.steps:,}, {human_count(reached.parameters)} parameters, "
            f"{reached.nodes_active} nodes at work",
        ]
        if reached.examined is not None:
            line = reached.examined.line
            lines.append(
                f"the line through the coordinator: {line.up_bits_s / 1e6:.1f} Mbit/s up, {line.down_bits_s / 1e6:.1f} "
                f"down; the coordinator's clock is read to within {1000 * line.clock_error_s:.1f} ms"
            )
        else:
            lines.append(f"the line and the run's model are not measured: {reached.why_not}")
    if found.problem:
        return [*lines, "this machine itself keeps no node from starting, but the coordinator could not be asked"]
    if run is None:
        return [*lines, "nothing here keeps a node from starting; it compares itself with the run when it joins"]
    if run.base_bits is not None:
        lines.append(f"holds the run's frozen base in {run.base_bits} bits a parameter")
    if run.cards:
        lines.append(f"cards that can train the run: {run.cards}")
    if run.samples_s is not None:
        speed = f" ({human_count(round(run.tokens_s))} tokens/s)" if run.tokens_s is not None else ""
        lines.append(f"trains {run.samples_s:.3g} samples/s of the run's model{speed}")
    if run.moments_on_host:
        lines.append(MOMENTS_ON_HOST)
    if run.send_s is not None and run.fetch_s is not None:
        lines.append(
            f"a contribution takes at most {human_seconds(run.send_s)} to send, an update "
            f"{human_seconds(run.fetch_s)} to fetch"
        )
    return [*lines, run.verdict]
