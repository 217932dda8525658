"""Creates reports of a node: see `thinwire_node.observe.report`."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from thinwire_common.traffic import Traffic
from thinwire_node.daemon import Node
from thinwire_node.observe.report import STATES, VERSION, Bytes, Clock, Device, Given, Report, RunPosition
from thinwire_node.part import PartView
from thinwire_node.session.record import Record
from thinwire_node.training.device import memory_bytes

RATE_OVER_S = 60.0
RATE_EVERY_S = 0.5


class Reporter:
    """Creates reports of one node. Runs on the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._past: deque[_Totals] = deque()

    def report(self) -> Report:
        """A report of the node's state now."""
        node = self._node
        found = node.part.view() if node.part is not None else PartView("")
        state, words = _state(node, found)
        context = node.contract.model.context if node.contract is not None else 0
        samples_s, sent_s, received_s = self._rates(node.record)
        return Report(
            at_s=time.time(),
            version=VERSION,
            name=node.name,
            address=node.settings.address,
            state=state,
            words=words,
            place=_position(node, found),
            peers=found.peers,
            given=_given(node.record, samples_s * context),
            clock=Clock(
                offset_s=found.clock_offset_s,
                error_s=found.clock_error_s,
                jumps=node.record.clock_jumps,
            ),
            bytes=_bytes(node.record.traffic, sent_s, received_s, node.record.tail.bytes_s),
            device=_device(node, found),
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


def _position(node: Node, found: PartView) -> RunPosition:
    contract, part = node.contract, node.part
    replica = part.replica if part is not None else None
    return RunPosition(
        step=found.step,
        head_step=found.head_step,
        steps=contract.schedule.steps if contract is not None else None,
        parameters=replica.layout.parameters if replica is not None else None,
        round=found.round,
        round_length_s=contract.round.length_s if contract is not None else None,
        round_left_s=found.round_left_s,
        k=found.k,
        lease_samples=part.lease.left if part is not None and part.is_taken_up else None,
    )


def _given(record: Record, tokens_s: float) -> Given:
    bits = 8 * (record.payload_bytes or 0)
    return Given(
        counted=record.counted,
        not_counted=record.not_counted,
        not_counted_why=record.not_counted_why,
        outcomes=dict(record.outcomes),
        tokens=record.tokens,
        samples=record.samples,
        tokens_s=tokens_s,
        micro_batches_dropped=record.dropped,
        gradients_dropped=record.too_old,
        resyncs=record.resyncs,
        mismatches=record.mismatches,
        sessions=record.sessions,
        sessions_lost=record.sessions_lost,
        loss=record.loss,
        components=record.components,
        component_bits=bits / record.components if record.components else None,
        slack_s=record.slack_s,
        micro_batch_samples=record.micro_batch,
        samples_skipped=record.samples_skipped,
        shards_skipped=record.shards_skipped,
        data_wait_s=record.phases["data"].sum_s,
        fetched_bytes=dict(record.fetched_bytes),
    )


def _bytes(traffic: Traffic, sent_s: float, received_s: float, upload_s: float | None) -> Bytes:
    wire = traffic.wire
    return Bytes(
        sent=dict(traffic.sent.bytes),
        received=dict(traffic.received.bytes),
        sent_messages=dict(traffic.sent.messages),
        received_messages=dict(traffic.received.messages),
        sent_s=sent_s,
        received_s=received_s,
        wire_sent=wire.sent if wire is not None else None,
        wire_received=wire.received if wire is not None else None,
        upload_s=upload_s,
    )


def _device(node: Node, found: PartView) -> Device:
    name = node.machine.device if node.machine is not None else ""
    held_bytes, limit_bytes = memory_bytes(name) if name else (None, None)
    return Device(
        name=name,
        memory_bytes=held_bytes,
        memory_limit_bytes=limit_bytes,
        jobs=node.part.jobs if node.part is not None else 0,
        to_deliver=found.to_deliver,
    )
