"""Creates reports of a node: see `thinwire_node.observe.report`."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from thinwire_common.traffic import Traffic
from thinwire_node.daemon import Node
from thinwire_node.exchange.gossip_port import PeerPlace
from thinwire_node.exchange.port import AnnouncedRound, Waiting
from thinwire_node.observe.report import STATES, VERSION, Bytes, Clock, Device, Edge, Given, Peers, Report, RunPosition
from thinwire_node.session.gossip.session import GossipState, state_of
from thinwire_node.session.record import Record
from thinwire_node.session.session import SessionState
from thinwire_node.training import pacing
from thinwire_node.training.device import memory_bytes
from thinwire_proto.contract.exchanges.gossip import GossipSpec

RATE_OVER_S = 60.0
RATE_EVERY_S = 0.5
NOT_TRAINING = GossipState(0, 0, 0, 0, 0, "")


class Reporter:
    """Creates reports of one node. Runs on the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._past: deque[_Totals] = deque()

    def report(self) -> Report:
        """A report of the node's state now."""
        node = self._node
        found = node.session.state() if node.session is not None else None
        gossip = found if isinstance(found, GossipState) else None
        session = found if isinstance(found, SessionState) else None
        state, words = _state(node, session, gossip)
        context = node.contract.model.context if node.contract is not None else 0
        samples_s, sent_s, received_s = self._rates(node.record)
        return Report(
            at_s=time.time(),
            version=VERSION,
            name=node.name,
            address=node.settings.address,
            state=state,
            words=words,
            place=_position(node, session),
            peers=_peers(node),
            given=_given(node.record, samples_s * context),
            clock=Clock(
                offset_s=session.clock_offset_s if session is not None else None,
                error_s=session.clock_error_s if session is not None else None,
                jumps=node.record.clock_jumps,
            ),
            bytes=_bytes(node.record.traffic, sent_s, received_s, node.record.tail.bytes_s),
            device=_device(node, session),
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


def _state(node: Node, session: SessionState | None, gossip: GossipState | None) -> tuple[str, str]:
    """One of STATES, and a text for people."""
    words, training = node.doing, node.training
    if node.leaving and node.doing != "left":
        words = "leaving"
    elif gossip is not None:
        words = gossip.words
    elif session is not None:
        words = _in_session(node, session)
    elif training is not None and training.is_under_way:
        words = f"{training.doing}; {node.doing}"
    in_session = session is not None or gossip is not None
    # without a session, a node does not take part in rounds, whatever it does; iterations go on
    return next((state for state in STATES if words.startswith(state)), "waiting" if in_session else "starting"), words


def _in_session(node: Node, session: SessionState) -> str:
    replica = node.work.replica if node.work is not None else None
    announced, doing = session.announcement, session.doing
    words = "training"
    if announced is None:
        behind = replica is not None and replica.step < session.head_step
        words = f"catching up: step {replica.step} of {session.head_step}" if replica and behind else "waiting"
    elif isinstance(announced, Waiting):
        words = announced.text
    elif isinstance(doing, pacing.Wait):
        words = "delivering: waiting for the receipt" if session.to_deliver else f"waiting: {doing.why}"
    return words


def _position(node: Node, session: SessionState | None) -> RunPosition:
    contract, replica = node.contract, node.work.replica if node.work is not None else None
    announced = session.announcement if session is not None else None
    current = announced if isinstance(announced, AnnouncedRound) else None
    step = replica.step if replica is not None else None
    if node.training is not None:
        replica, step = node.training.replica, node.training.work.finished
    taken = node.work or node.training
    return RunPosition(
        step=step,
        head_step=session.head_step if session is not None else None,
        steps=contract.schedule.steps if contract is not None else None,
        parameters=replica.layout.parameters if replica is not None else None,
        round=current.number if current is not None else None,
        round_length_s=contract.round.length_s if contract is not None else None,
        round_left_s=session.round_left_s if session is not None else None,
        k=current.k if current is not None else None,
        lease_samples=taken.lease.left if taken is not None else None,
    )


def _peers(node: Node) -> Peers | None:
    """In a run without a centre, also before the first session and after the last one."""
    if node.contract is None or not isinstance(node.contract.exchange, GossipSpec):
        return None
    training, traffic = node.training, node.record.traffic
    gossip = state_of(training, training.doing) if training is not None else NOT_TRAINING
    places = training.places if training is not None else {}
    return Peers(
        topology=gossip.topology,
        present=gossip.present,
        absent=gossip.peers - gossip.present,
        sent_bytes=traffic.sent.bytes["parcel"],
        received_bytes=traffic.received.bytes["parcel"],
        waited_s=node.record.phases["peers"].sum_s,
        direct=gossip.direct,
        sent_bytes_by_line=dict(traffic.peers_sent),
        received_bytes_by_line=dict(traffic.peers_received),
        edges=[Edge(edge.member, edge.line, edge.iteration, _id_of(places.get(edge.member))) for edge in gossip.edges],
    )


def _id_of(place: PeerPlace | None) -> str:
    return place.key.node_id if place is not None else ""


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


def _device(node: Node, session: SessionState | None) -> Device:
    name = node.machine.device if node.machine is not None else ""
    held_bytes, limit_bytes = memory_bytes(name) if name else (None, None)
    taken = node.work or node.training
    return Device(
        name=name,
        memory_bytes=held_bytes,
        memory_limit_bytes=limit_bytes,
        jobs=taken.jobs if taken is not None else 0,
        to_deliver=session.to_deliver if session is not None else 0,
    )
