"""Creates reports of a node: see `thinwire_node.report`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from thinwire_node.daemon import Node
from thinwire_node.observe import status
from thinwire_node.report import STATES, VERSION, Bytes, Device, PartView, Report, Tally
from thinwire_node.session.record import Record
from thinwire_node.training.device import memory_bytes
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import ConfigError

POWERCAP = Path("/sys/class/powercap")
SLEPT_OVER_S = 60.0
"""After a longer time without a look, such as a sleep, the power in between is not known."""


class EnergyMeter:
    """Counts the energy that the machine uses from the construction on, whoever uses it, where the machine tells it.

    Of the processor, Linux counts it in /sys/class/powercap (Intel's and AMD's RAPL), for those who may read that. Of a
    card, torch asks the driver. power_w: of the card; None: there is none. now: seconds on a monotonic clock."""

    def __init__(
        self, now: Callable[[], float], power_w: Callable[[], float] | None = None, folder: Path = POWERCAP
    ) -> None:
        self._now = now
        self._power_w = power_w
        self._zones = {zone: _read(zone / "energy_uj") for zone in sorted(folder.glob("*-rapl:[0-9]"))}
        self._at_s = now()
        self.joules = 0.0

    def look(self) -> float:
        """Joules up to now. Call it every few seconds."""
        elapsed_s, self._at_s = self._now() - self._at_s, self._now()
        for zone, before in self._zones.items():
            after = self._zones[zone] = _read(zone / "energy_uj")
            if before is None or after is None:
                continue
            begun_anew_uj = (_read(zone / "max_energy_range_uj") or before) if after < before else 0
            self.joules += (after - before + begun_anew_uj) / 1e6
        if self._power_w is not None and elapsed_s <= SLEPT_OVER_S:
            self.joules += self._power_w() * elapsed_s
        return self.joules


def power_of(device: str) -> Callable[[], float] | None:
    """Reads the power of a card in watts; None: this device does not tell it."""
    if not device.startswith("cuda"):
        return None

    def read() -> float:
        try:
            return torch.cuda.power_draw(torch.device(device)) / 1000
        except Exception:  # noqa: BLE001 - no library of the driver, no sensor, a lost card: each raises another
            return 0.0

    return read if read() else None


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


RATE_OVER_S = 60.0
RATE_EVERY_S = 0.5


class Reporter:
    """Creates reports of one node. Runs on the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._past: deque[tuple[float, int, int, int]] = deque()  # time, samples, bytes sent and received
        self._tallies: Tallies | None = None
        """None until the node holds its state directory."""
        self._energy: EnergyMeter | None = None
        """None until the device is known."""
        self.ended_by = ""
        """The error that has ended the node, in words."""

    def report(self) -> Report:
        node, record = self._node, self._node.record
        contract, part, traffic = node.contract, node.part, node.record.traffic
        work = part.work if part is not None else None
        found = part.view() if part is not None else PartView("")
        state, words = _state(node, found)
        samples_s, sent_s, received_s = self._rates(record)
        wire, device, ranks = traffic.wire, node.machine.device if node.machine is not None else "", node.settings.ranks
        day = time.strftime("%Y-%m-%d")
        today, in_all = self._tallies_of(day)
        own = node.settings.own
        return Report(
            at_s=time.time(),
            version=VERSION,
            name=node.name,
            address=node.settings.address,
            state=state,
            words=words,
            part=found,
            given=record.counts(),
            bytes=Bytes(
                sent=dict(traffic.sent.bytes),
                received=dict(traffic.received.bytes),
                sent_s=sent_s,
                received_s=received_s,
                wire_sent=wire.sent if wire is not None else None,
                wire_received=wire.received if wire is not None else None,
                upload_s=record.tail.bytes_s,
            ),
            device=Device(
                f"{device} and {ranks.size - 1} more" if ranks is not None else device,
                *(memory_bytes(device) if device else (None, None)),
                work.jobs if work is not None else 0,
            ),
            steps=contract.schedule.steps if contract is not None else None,
            round_length_s=contract.round.length_s if contract is not None else None,
            lease_samples=work.lease.left if work is not None else None,
            data_wait_s=record.phases["data"].sum_s,
            tokens_s=samples_s * contract.model.context if contract is not None else 0.0,
            loss_unit=node.loss_unit,
            ended_by=self.ended_by,
            day=day,
            today=today,
            in_all=in_all,
            limits_file=clean_text(str(own.path.absolute())) if own is not None and own.path is not None else "",
        )

    def _tallies_of(self, day: str) -> tuple[Tally, Tally]:
        node = self._node
        if self._tallies is None and node.holds_state:
            self._tallies = Tallies.of_earlier_processes(node.settings.state_dir)
        return (self._tallies or Tallies()).with_process(day, self._tally())

    def _tally(self) -> Tally:
        record = self._node.record
        traffic = record.traffic
        sent, received = traffic.sent.total_bytes, traffic.received.total_bytes
        if (wire := traffic.wire) is not None:
            sent, received = max(sent, wire.sent), max(received, wire.received)
        return Tally(record.counted, record.tokens, record.phases["compute"].sum_s, sent, received, self._joules())

    def _joules(self) -> float:
        machine = self._node.machine
        if self._energy is None and machine is not None:
            self._energy = EnergyMeter(time.monotonic, power_of(machine.device))
        return self._energy.look() if self._energy is not None else 0.0

    def _rates(self, record: Record) -> tuple[float, float, float]:
        """Samples, bytes sent and bytes received per second."""
        traffic, past = record.traffic, self._past
        now = (time.monotonic(), record.samples, traffic.sent.total_bytes, traffic.received.total_bytes)
        if not past or now[0] - past[-1][0] >= RATE_EVERY_S:
            past.append(now)
        while len(past) > 1 and now[0] - past[0][0] > RATE_OVER_S:
            past.popleft()
        seconds, samples, sent, received = (after - before for after, before in zip(now, past[0], strict=True))
        if seconds < RATE_EVERY_S:
            return 0.0, 0.0, 0.0
        return samples / seconds, sent / seconds, received / seconds


@dataclass
class Tallies:
    """The tallies of the processes before this one: of the date `day`, and of all days."""

    day: str = ""
    today: Tally = field(default_factory=Tally)
    in_all: Tally = field(default_factory=Tally)

    @classmethod
    def of_earlier_processes(cls, folder: Path) -> Tallies:
        """The tallies of the newest report in a state directory."""
        try:
            report = status.read(folder)
        except ConfigError:
            return cls()
        return cls(report.day, report.today, report.in_all)

    def with_process(self, day: str, process: Tally) -> tuple[Tally, Tally]:
        """The tallies of this day, and of all days. process: of this process, up to now."""
        if day != self.day:
            self.day, self.today = day, Tally().minus(process)
        return self.today.plus(process), self.in_all.plus(process)


def _state(node: Node, found: PartView) -> tuple[str, str]:
    """One of STATES, and a text for people."""
    words, in_session = node.doing, node.session is not None
    if node.leaving and node.doing != "left":
        words = "leaving"
    elif in_session:
        words = found.words
    elif found.goes_on:
        words = f"{found.words}; {node.doing}"
    return next((state for state in STATES if words.startswith(state)), "waiting" if in_session else "starting"), words
