"""A report of a node that has trained for a while."""

from __future__ import annotations

from thinwire_node.observe.report import Bytes, Clock, Device, Given, Report, RunPosition
from thinwire_node.session.record import Record


def small_report() -> Report:
    return Report(
        at_s=1_750_000_000.0,
        version="0.1.0",
        name="node-1",
        address="127.0.0.1:7700",
        state="training",
        words="training",
        place=RunPosition(117, 117, 200, 914_688, 118, 30.0, 12.3, 32, 64),
        given=Given(
            counted=117,
            not_counted=1,
            not_counted_why="the round is over",
            outcomes=Record().outcomes | {"counted": 117, "late": 1},
            tokens=1_204_224,
            samples=4800,
            tokens_s=13_100.4,
            micro_batches_dropped=0,
            gradients_dropped=0,
            resyncs=0,
            mismatches=0,
            sessions=1,
            sessions_lost=0,
            loss=2.4123,
            components=7000,
            component_bits=9.6,
            slack_s=2.5,
            micro_batch_samples=8,
        ),
        clock=Clock(0.01, 0.0004, 0),
        bytes=Bytes(
            sent={"contribution": 1_700_000, "probe": 1000},
            received={"update": 4_500_000},
            sent_messages={"contribution": 118, "probe": 30},
            received_messages={"update": 117},
            sent_s=12_300.0,
            received_s=30_100.0,
            wire_sent=1_800_000,
            wire_received=4_600_000,
            upload_s=500_000.0,
        ),
        device=Device("cpu", 400_000_000, 25_000_000_000, 1, 0),
    )
