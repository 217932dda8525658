"""Creates reports of a node: see `thinwire_node.report`."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from thinwire_node.daemon import Node
from thinwire_node.report import STATES, VERSION, Bytes, Device, PartView, Report
from thinwire_node.session.record import Record
from thinwire_node.training.device import memory_bytes

RATE_OVER_S = 60.0
RATE_EVERY_S = 0.5


class Reporter:
    """Creates reports of one node. Runs on the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._past: deque[_Totals] = deque()
        self.ended_by = ""
        """The error that has ended the node, in words."""

    def report(self) -> Report:
        """A report of the node's state now."""
        node, record = self._node, self._node.record
        contract, part, traffic = node.contract, node.part, node.record.traffic
        found = part.view() if part is not None else PartView("")
        state, words = _state(node, found)
        samples_s, sent_s, received_s = self._rates(record)
        wire, device = traffic.wire, node.machine.device if node.machine is not None else ""
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
                device, *(memory_bytes(device) if device else (None, None)), part.jobs if part is not None else 0
            ),
            steps=contract.schedule.steps if contract is not None else None,
            round_length_s=contract.round.length_s if contract is not None else None,
            lease_samples=part.lease.left if part is not None and part.is_taken_up else None,
            data_wait_s=record.phases["data"].sum_s,
            tokens_s=samples_s * contract.model.context if contract is not None else 0.0,
            ended_by=self.ended_by,
        )

    def _rates(self, record: Record) -> tuple[float, float, float]:
        """Samples, bytes sent and bytes received per second."""
        traffic, past = record.traffic, self._past
        now = _Totals(time.monotonic(), record.samples, traffic.sent.total_bytes, traffic.received.total_bytes)
        if not past or now.at_s - past[-1].at_s >= RATE_EVERY_S:
            past.append(now)
        while len(past) > 1 and now.at_s - past[0].at_s > RATE_OVER_S:
            past.popleft()
        then = past[0]
        seconds = now.at_s - then.at_s
        if seconds < RATE_EVERY_S:
            return 0.0, 0.0, 0.0
        return (
            (now.samples - then.samples) / seconds,
            (now.sent_bytes - then.sent_bytes) / seconds,
            (now.received_bytes - then.received_bytes) / seconds,
        )


@dataclass(frozen=True)
class _Totals:
    at_s: float
    samples: int
    sent_bytes: int
    received_bytes: int


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
