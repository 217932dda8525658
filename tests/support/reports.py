"""A report of a node that has trained for a while."""

from __future__ import annotations

from thinwire_node.report import Bytes, Counts, Device, PartView, Report
from thinwire_node.session.record import Record


def small_report() -> Report:
    return Report(
        at_s=1_750_000_000.0,
        version="0.1.0",
        name="node-1",
        address="127.0.0.1:7700",
        state="training",
        words="training",
        part=PartView("training", step=117, head_step=117, round=118, round_left_s=12.3, clock_error_s=0.0004),
        given=Counts(
            counted=117,
            not_counted=1,
            not_counted_why="the round is over",
            outcomes=Record().outcomes | {"counted": 117, "late": 1},
            tokens=1_204_224,
            samples=4800,
            sessions=1,
            loss=2.4123,
            components=7000,
            payload_bytes=8400,
            slack_s=2.5,
            micro_batch=8,
        ),
        bytes=Bytes(
            sent={"contribution": 1_700_000, "probe": 1000},
            received={"update": 4_500_000},
            sent_s=12_300.0,
            received_s=30_100.0,
            wire_sent=1_800_000,
            wire_received=4_600_000,
            upload_s=500_000.0,
        ),
        device=Device("cpu", 400_000_000, 25_000_000_000, 1),
        steps=200,
        round_length_s=30.0,
        lease_samples=64,
        tokens_s=13_100.4,
    )
