"""Forecasts what a machine would do in a run: whether it fits, its speed on the run's model, its share of a round."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from thinwire_common.units import human_seconds
from thinwire_node.resources import Room, cards_that_train, check_declared, fit_measured
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.failures import NotFinite, OutOfMemory
from thinwire_node.training.micro_batch import SAMPLES_MAX, MicroBatch
from thinwire_proto.activations import sample_of
from thinwire_proto.contract import Contract, ModelSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.errors import ContractError, LocalError
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.limits import SPEED_MEASURED_S
from thinwire_proto.needs import SAMPLES_MAX_CARD
from thinwire_proto.out_of_memory import TooLittleMemory
from thinwire_proto.task import Task, task_of
from thinwire_proto.wire.codec import contribution_bytes_max, update_bytes_max


@dataclass(frozen=True)
class Forecast:
    """The work that a machine would do in a run; None where it is not known.

    fits: whether the run fits into memory and disk. samples_s: samples a second that it trains of the run's model.
    tokens_s: the same in tokens, of a text. samples: that it trains in a round of `round_s` seconds, of which
    `samples_full` count in full. send_s, fetch_s: seconds for a contribution and an update, at most. busy: the part of
    a round in which it computes or transfers, 0 to 1. binding: what more of would help: room (memory or disk), line,
    compute, or nothing. helps: None: it is not known. verdict: in a sentence. base_bits: of a parameter of the frozen
    base, if the node has a choice. cards: which cards can train the run, in words; empty if that is not known.
    moments_on_host: see `Pass`."""

    samples_full: int
    round_s: float
    verdict: str
    fits: bool = True
    helps: bool | None = None
    binding: str = "nothing"
    samples_s: float | None = None
    tokens_s: float | None = None
    samples: int | None = None
    send_s: float | None = None
    fetch_s: float | None = None
    busy: float | None = None
    base_bits: int | None = None
    cards: str = ""
    moments_on_host: bool = False


def forecast(
    contract: Contract, room: Room, device: torch.device, up_bits_s: float, down_bits_s: float, nodes: int
) -> Forecast:
    """Measure this machine's speed on a contract's model, and compare. Takes seconds. nodes: at work now."""
    most = SAMPLES_MAX if device.type == "cpu" else SAMPLES_MAX_CARD
    known: dict[str, Any] = {"samples_full": contract.round.samples, "round_s": contract.round.length_s}
    lacks_room = partial(Forecast, fits=False, helps=False, binding="room")
    try:
        task = task_of(contract.model)
        check_declared(contract, room, most)
        known["cards"] = cards_that_train(contract)
        needs, fits = fit_measured(contract, room, most)
        known["base_bits"] = needs.model.bits
    except (LocalError, ContractError) as error:
        return lacks_room(**known, verdict=f"this machine cannot help, because {error}")
    known["moments_on_host"] = fits.moments_on_host
    count = min(fits.samples or most, contract.round.samples, most)
    samples_s = None
    if not task.blobs():
        try:
            samples_s = samples_a_second(task, contract.model, device, count, checkpoints=fits.checkpoints)
        except (OutOfMemory, TooLittleMemory):
            why = f"a pass of {count} samples runs out of memory on {device}"
            return lacks_room(**known, verdict=f"this machine cannot help, because {why}")
        except NotFinite:
            samples_s = None  # weights that were never trained may diverge; the speed is then not known
    tokens = getattr(contract.model, "context", None)
    known["samples_s"] = samples_s
    known["tokens_s"] = samples_s * tokens if samples_s is not None and tokens else None
    if contract.exchange.kind != "star":
        text = "this machine can help; how much of an iteration it uses depends on its peers, in a gossip run"
        return Forecast(**known, helps=True, verdict=text)
    send_s, fetch_s = transfer_s(contract, up_bits_s, down_bits_s, nodes)
    share = share_of(samples_s, send_s + fetch_s, contract.round)
    return Forecast(**known, **asdict(share), send_s=send_s, fetch_s=fetch_s)


def transfer_s(contract: Contract, up_bits_s: float, down_bits_s: float, nodes: int) -> tuple[float, float]:
    """Seconds for a contribution and for an update of so many nodes and this one, at most: bounds of the codec."""
    demo, layout = contract.demo, layout_of(contract.parameters)
    whole = demo.sends_whole_tiles
    up = contribution_bytes_max(layout, demo.k, demo.magnitude, whole=whole, levels=demo.vote_levels)
    down = update_bytes_max(layout, demo.magnitude, demo.update_levels)
    if not demo.update_levels:
        down = min(down, (nodes + 1) * up)  # it holds at most what they all have sent
    return 8 * up / up_bits_s, 8 * down / down_bits_s


@dataclass(frozen=True)
class Share:
    """A machine's part of a round; see `Forecast`."""

    samples: int | None
    busy: float | None
    binding: str
    helps: bool | None
    verdict: str


def share_of(samples_s: float | None, line_s: float, rounds: RoundSpec) -> Share:
    """The share of a round at a speed, if a round's transfers take `line_s` seconds.

    Transfers take time from computing only where bases may not be older than the newest step."""
    length_s, full = rounds.length_s, rounds.samples
    of_round = f"of a round of {human_seconds(length_s)}"
    if line_s >= length_s:
        text = f"its line needs {human_seconds(line_s)} {of_round} for a contribution and an update"
        return Share(0, 1.0, "line", False, f"this machine cannot help, because {text}: a faster line would do")
    if samples_s is None:
        text = f"its line needs {human_seconds(line_s)} {of_round}; its speed cannot be measured before it joins"
        return Share(None, None, "compute", None, text)
    overlaps = rounds.base_age_max > 0
    room_s = length_s if overlaps else length_s - line_s
    samples = min(full, math.floor(samples_s * room_s))
    if samples == 0:
        text = f"one sample takes it {human_seconds(1 / samples_s)}, and {human_seconds(room_s)} {of_round} are left"
        found = "line" if samples_s * length_s >= 1 else "compute"
        more = "a faster line" if found == "line" else "a faster processor or a card"
        return Share(0, 1.0, found, False, f"this machine cannot help, because {text}: {more} would do")
    compute_s = samples / samples_s
    busy = (max(compute_s, line_s) if overlaps else compute_s + line_s) / length_s
    can = f"this machine can help: it would train {samples:,} of {full:,} samples and be busy for {busy:.0%} {of_round}"
    if samples == full:
        return Share(samples, busy, "nothing", True, f"{can}; that is a full share, so nothing holds it back")
    binding = "line" if not overlaps and line_s > compute_s else "compute"
    more = "a faster line" if binding == "line" else "a faster processor or a card"
    return Share(samples, busy, binding, True, f"{can}; {more} would make it more")


def samples_a_second(
    task: Task, spec: ModelSpec, device: torch.device, count: int, *, checkpoints: bool = False
) -> float:
    """Samples a second of forward and backward passes over `count` samples, from initial parameters.

    Raises OutOfMemory, TooLittleMemory or NotFinite. task: one without blobs."""
    compute = TorchCompute(task, device, micro_batch=MicroBatch(count, checkpoints=checkpoints))
    state = task.initial_state(0)
    compute.use({name: tensor.to(device) for name, tensor in state.items()})
    batch = tuple(torch.cat([tensor] * count).to(device) for tensor in sample_of(spec))
    began_s = time.monotonic()
    float(compute.gradients(batch)[0])  # reads the loss, so that a card has finished
    first_s = time.monotonic() - began_s
    if first_s >= SPEED_MEASURED_S:  # of a large model: no second pass for the sake of what the first one loads
        return count / first_s
    batches, began_s = 0, time.monotonic()
    while (took_s := time.monotonic() - began_s) < SPEED_MEASURED_S:
        float(compute.gradients(batch)[0])
        batches += 1
    return batches * count / took_s
