"""Every time limit, in one place, derived from two lengths: R, the worst round trip of a link that may take part,
and T, the length of a round. docs/time.md holds the same table; a test compares the two.

Both ends use it, because they must agree: a server closes a connection that pings more often than it allows, and a node
that waits less long than the coordinator reads would call a contribution lost that is counted.
"""

from __future__ import annotations

ROUND_TRIP_MAX_S = 2.0
"""R. Beyond it a link counts as lost rather than slow. Satellite links have 0.7 s; TCP's own patience begins at 1 s."""
CLOCK_DRIFT_MAX = 200e-6
"""Seconds that one clock may gain on another in a second. Quartz is within 100 ppm."""

HEARTBEAT_S = 5 * ROUND_TRIP_MAX_S
"""Between two HTTP/2 pings, on either side."""
HEARTBEAT_LEAST_S = HEARTBEAT_S / 2
"""The coordinator hangs up on pings that come more often."""
HEARTBEAT_ANSWER_S = 2.5 * ROUND_TRIP_MAX_S
"""A side that does not answer a ping for so long is gone."""
LOST_AFTER_S = HEARTBEAT_S + HEARTBEAT_ANSWER_S
"""A machine that vanished is noticed by then."""
CALL_S = 2 * LOST_AFTER_S
"""The answer to a call that the coordinator can give at once, be it ever so busy."""
READ_GRACE_S = ROUND_TRIP_MAX_S / 2
"""What arrives so soon after the end of its round is still read, to be told that it is late."""
BACKOFF_FIRST_S = ROUND_TRIP_MAX_S / 4
BACKOFF_MAX_S = HEARTBEAT_S
"""Pauses between attempts to reach the coordinator."""
RECONNECT_MAX_S = ROUND_TRIP_MAX_S
"""The same, within gRPC."""
LEAVE_S = 2.5 * ROUND_TRIP_MAX_S
"""A node that is told to leave has left by then."""
RECEIPT_WAIT_S = ROUND_TRIP_MAX_S
"""So much of it may go into waiting for the receipt that is out."""
SHUTDOWN_GRACE_S = ROUND_TRIP_MAX_S
"""Calls that run when the coordinator is told to end may go on for so long."""
SUSPENDED_S = ROUND_TRIP_MAX_S / 2
"""Asleep for longer, a machine has to look at its clocks anew."""
KEEPING_UP_S = HEARTBEAT_S
"""Whoever catches up for so long without getting nearer is on a link that cannot."""
LOOK_AGAIN_S = ROUND_TRIP_MAX_S
"""A node that waits for something to change looks again by then."""
LAST_WORD_S = ROUND_TRIP_MAX_S
"""A node whose stream has ended may still say that it leaves; after this it is lost."""
SILENT_AFTER_S = LOST_AFTER_S
"""A node that has not written its status for so long is not heard of any more."""
STATUS_ANSWER_S = 5 * ROUND_TRIP_MAX_S
"""The answer to `thinwire-coordinator status`."""
LOCK_WAIT_S = ROUND_TRIP_MAX_S / 8
"""For a state directory: `thinwire-node status` holds its lock for a moment, to see whether somebody else does."""
LEDGER_BUSY_S = 2.5 * ROUND_TRIP_MAX_S
"""For another connection to the same ledger to end what it writes."""
TERMINAL_CLOSE_S = ROUND_TRIP_MAX_S
"""For a terminal to take what is still to be shown, when the node ends."""
HTTP_REQUEST_S = 2.5 * ROUND_TRIP_MAX_S
"""For whoever asks a node for its metrics to say what, and again to take the answer."""
HTTP_SHUTDOWN_S = ROUND_TRIP_MAX_S / 2
"""HTTP requests that run when the coordinator ends may go on for so long."""
STREAM_HEARTBEAT_S = LOST_AFTER_S
"""Between two messages to a browser that watches, where nothing happens."""
BROWSER_SILENT_S = CALL_S
"""A browser that acknowledges nothing for so long is gone."""

assert RECEIPT_WAIT_S + ROUND_TRIP_MAX_S < LEAVE_S < LOST_AFTER_S, "a node leaves before it is called lost"
assert HEARTBEAT_LEAST_S < HEARTBEAT_S, "a node may ping as often as it does"
assert LOST_AFTER_S < CALL_S, "a lost link is noticed before a call is given up"
assert STREAM_HEARTBEAT_S < BROWSER_SILENT_S, "a browser is not given up before it was sent something to acknowledge"
assert READ_GRACE_S < ROUND_TRIP_MAX_S, "a round that is over does not delay the next"


def probe_every_s(round_s: float) -> float:
    """Between two probes of the coordinator's clock: once a round, but not more often than R nor more rarely than a
    heartbeat; the error grows by at most 2 ms in between."""
    return min(max(round_s, ROUND_TRIP_MAX_S), HEARTBEAT_S)


def margin_s(round_s: float) -> float:
    """Between the end of the upload and the deadline: for the coordinator's own check, and for what cannot be measured.
    A twentieth of the round, at most R/8."""
    return min(round_s / 20, ROUND_TRIP_MAX_S / 8)


def unmeasured_tail_s(round_s: float) -> float:
    """Stands for encoding and upload before either was measured."""
    return round_s / 4


def void_lasts_s(round_s: float) -> float:
    """The round after a void one opens no sooner: nodes with nothing to say must not make rounds spin."""
    return min(round_s, ROUND_TRIP_MAX_S / 4)


def save_every_s(round_s: float, save_s: float) -> float:
    """Between two saves of a node's state, where the last one took `save_s`: once a round, unless that would take more
    than a hundredth of the time."""
    return max(round_s, 100 * save_s)
