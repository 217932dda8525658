"""All time limits, derived from two lengths: R, the worst round trip of a usable link, and T, the length of a round.

docs/time.md has the same table, and a test compares the two. Node and coordinator share these limits because they must
agree. For example, a server closes a connection that sends pings more often than it allows, and a node that waited too
briefly would believe a contribution lost that the coordinator counts.
"""

from __future__ import annotations

ROUND_TRIP_MAX_S = 2.0
"""R. A slower link counts as lost. Satellite links have 0.7 s; TCP retransmits after 1 s at first."""
CLOCK_DRIFT_MAX = 200e-6
"""Seconds that one clock may gain on another in a second. Quartz clocks are within 100 ppm."""

HEARTBEAT_S = 5 * ROUND_TRIP_MAX_S
"""Time between two HTTP/2 pings, on either side."""
HEARTBEAT_LEAST_S = HEARTBEAT_S / 2
"""The coordinator closes a connection whose pings are closer together."""
HEARTBEAT_ANSWER_S = 2.5 * ROUND_TRIP_MAX_S
"""A machine that acknowledges nothing for so long is gone (TCP_USER_TIMEOUT, which gRPC sets from it)."""
PING_ANSWER_S = 10 * ROUND_TRIP_MAX_S
"""A program that has not answered a ping for so long is gone, although its machine acknowledges. The answer comes
behind all that is under way, for which a thin line takes many seconds."""
LOST_AFTER_S = HEARTBEAT_S + HEARTBEAT_ANSWER_S
"""Longest time until the loss of a machine is noticed. It follows from the two heartbeats that gRPC is given, on both
ends; changing this sum alone changes nothing."""
CALL_S = 2 * LOST_AFTER_S
"""Timeout of a call that the coordinator can answer at once, even under load."""
DIAL_S = 10 * ROUND_TRIP_MAX_S
"""Time for finding the coordinator: its name, its address, a proxy, and TLS, which are five round trips."""
DIAL_NEXT_S = ROUND_TRIP_MAX_S / 8
"""An address that has not answered after this time is joined by the next one (RFC 8305 recommends 250 ms)."""
CHALLENGE_S = CALL_S
"""A node may take so long to answer the coordinator's challenge."""
ORDERS_READ_S = ROUND_TRIP_MAX_S / 2
"""Time between two looks at what the organizer's commands have written: bans, and a pause."""
READ_GRACE_S = ROUND_TRIP_MAX_S / 2
"""The coordinator still reads data that arrives so soon after the end of its round, to reply that it is late."""
BACKOFF_FIRST_S = ROUND_TRIP_MAX_S / 4
BACKOFF_MAX_S = HEARTBEAT_S
"""First and longest pause between attempts to reach the coordinator."""
LOOK_WHILE_PAUSED_S = 90 * ROUND_TRIP_MAX_S
"""Time between a node's attempts to reach the coordinator of a run that is paused."""
RECONNECT_MAX_S = ROUND_TRIP_MAX_S
"""Longest pause between attempts inside gRPC."""
LEAVE_S = 2.5 * ROUND_TRIP_MAX_S
"""Longest time that a node takes to leave after it was told to: the sum of its bounded waits, not a timer."""
RECEIPT_WAIT_S = ROUND_TRIP_MAX_S
"""The part of LEAVE_S that a node may spend waiting for an outstanding receipt."""
REST_AFTER_S = ROUND_TRIP_MAX_S / 2
"""A micro-batch may go on for so long when a node is to rest. A longer one is given up."""
KEYBOARD_END_S = ROUND_TRIP_MAX_S
"""The thread and the process that serve the keys of the live view end within so long."""
SHUTDOWN_GRACE_S = ROUND_TRIP_MAX_S
"""Calls in progress may run for so long after the coordinator was told to stop."""
SUSPENDED_S = ROUND_TRIP_MAX_S / 2
"""After a longer sleep, a machine measures its clock offset again."""
KEEPING_UP_S = HEARTBEAT_S
"""Shortest window in which a node that catches up must get closer. After two in a row without, its link is too slow."""
LOOK_AGAIN_S = ROUND_TRIP_MAX_S
"""A waiting node checks again after so long, even if nothing was reported."""
FILE_WAIT_S = ROUND_TRIP_MAX_S / 2
"""The coordinator applies an update so much later, at most, because a file of its parameters is being written. It then
copies what is not in the file."""
PLACE_KEPT_S = 150 * ROUND_TRIP_MAX_S
"""A node keeps its place in a full swarm for so long at least, after it came or was counted, however short the rounds
are: it may fetch the data and the model meanwhile."""
BEAT_LEAST_S = ROUND_TRIP_MAX_S / 8
"""In a gossip run, a node's reports are at least so far apart."""
LAST_WORD_S = ROUND_TRIP_MAX_S
"""After its stream has ended, a node may still say for so long that it leaves; after this it is lost."""
STATUS_OLD_AFTER_S = LOST_AFTER_S
"""An older status.json says nothing about whether the node is well; a node writes it every 2 s."""
SAMPLE_S = 60 * ROUND_TRIP_MAX_S
"""The owner's page waits so long for a text of the model."""
STATUS_ANSWER_S = 5 * ROUND_TRIP_MAX_S
"""Timeout of `thinwire-coordinator status`."""
STATUS_PROOF_S = 30 * ROUND_TRIP_MAX_S
"""How far the clocks of organizer and coordinator may be apart when the organizer proves who asks for the status."""
LOCK_WAIT_S = ROUND_TRIP_MAX_S / 8
"""Wait for a lock that others hold only briefly: that of a state directory, which `thinwire-node status` holds to test
whether a node runs, and that of the cards, which a node holds while it chooses one."""
LEDGER_BUSY_S = 2.5 * ROUND_TRIP_MAX_S
"""Wait for another connection to the same ledger to finish its write."""
LOCKED_AGAIN_S = ROUND_TRIP_MAX_S / 2
"""Pause before a read or write is tried again, if another program holds the lock of the database."""
LOCKED_START_S = 30 * ROUND_TRIP_MAX_S
"""A coordinator that starts waits so long for such a lock."""
TERMINAL_CLOSE_S = ROUND_TRIP_MAX_S
"""Wait for a terminal, or for a reader of the log, to accept the remaining output when a program ends."""
HTTP_REQUEST_S = 2.5 * ROUND_TRIP_MAX_S
"""Time for an HTTP client to send its next request."""
HTTP_SHUTDOWN_S = ROUND_TRIP_MAX_S / 2
"""HTTP requests in progress may run for so long when a program stops."""
FETCH_SILENT_S = 5 * ROUND_TRIP_MAX_S
"""A source that sends almost nothing of a blob for so long is given up, and another one is tried."""
SOURCE_REST_S = 30 * ROUND_TRIP_MAX_S
"""A source that was given up is tried last for so long, and a shard that could not be read is tried again after it. A
node waits so long for another of its machine whose download stands still."""
SEAL_CLOSE_S = 2.5 * ROUND_TRIP_MAX_S
"""When the coordinator stops, the row that is being sealed may take so long to be on disk and in all curves."""
SINKS_CLOSE_S = 2.5 * ROUND_TRIP_MAX_S
"""When the coordinator stops, its sinks may take so long to write what they still have."""
SINK_RETRY_S = 2.5 * ROUND_TRIP_MAX_S
"""A sink that failed to begin is tried again after this time."""
PREPARE_SILENT_S = 60 * ROUND_TRIP_MAX_S
"""A source of `prepare` that sends nothing for so long is given up. Some take a minute to begin."""
HANDSHAKE_S = HEARTBEAT_S
"""A new connection to the coordinator may take so long until it speaks TLS and HTTP/2."""
IDLE_CONNECTION_S = 2 * CALL_S
"""A connection without a call is closed after so long. A node's has one all the time."""
FIRST_MESSAGE_S = HEARTBEAT_S
"""The first message of a call, which is small or has a header, has to arrive so soon after the call has begun."""
PART_S = 2 * CALL_S
"""Each further part of a contribution has to arrive within this time: a mebibyte at 140 kbit/s."""
ACCEPT_S = 2 * CALL_S
"""A node has to accept each message that it is sent within this time, or its connection is ended."""
REFUSAL_PAUSE_S = ROUND_TRIP_MAX_S / 2
"""The coordinator answers a call that came too often only after this time, which slows whoever ignores refusals."""
ACCEPT_AGAIN_S = ROUND_TRIP_MAX_S / 4
"""A server that cannot accept a connection, because it has no free file, tries again after this time."""
FAILURE_TOLD_AGAIN_S = ROUND_TRIP_MAX_S / 2
"""Of calls or connections that fail by a fault of this program, the log gets at most one in this time. All are
counted."""
STREAM_HEARTBEAT_S = LOST_AFTER_S
"""Time between two messages to a browser when nothing happens."""
BROWSER_SILENT_S = CALL_S
"""A browser that has acknowledged nothing for so long is gone."""
RELAY_WAIT_S = ROUND_TRIP_MAX_S
"""The relay waits so long at most for room for a parcel. Then the line is lost, and its sender is told."""
PEER_RETRY_FIRST_S = ROUND_TRIP_MAX_S / 4
PEER_RETRY_MAX_S = 30 * ROUND_TRIP_MAX_S
"""First and longest pause before a node begins a lost line to a peer again, directly or through the relay, unless the
peer does so before."""
PEER_DIRECT_S = ROUND_TRIP_MAX_S
"""A line that may become a direct one waits so long for it at most. Then it uses the relay meanwhile."""
KERNEL_TRIAL_S = 150 * ROUND_TRIP_MAX_S
"""A node's compressor kernel is compiled and compared with torch in at most this time, else torch does the work."""
RANKS_MEET_S = 150 * ROUND_TRIP_MAX_S
"""The processes of a node on several devices start in at most this time: each imports torch and finds its device."""
RANKS_IDLE_S = 864_000 * ROUND_TRIP_MAX_S
"""The longest that they wait for each other's next word, as in a run that is paused: 20 days. A process that ended is
noticed at once. gloo counts milliseconds in 32 bits, so it cannot be much more."""
RANK_END_S = 5 * ROUND_TRIP_MAX_S
"""One of them is killed if it takes longer to end, such as for the end of its micro-batch."""
DRIVER_ANSWER_S = 5 * ROUND_TRIP_MAX_S
"""A program of the system or of a card's driver, such as nvidia-smi, may take so long to tell of the machine."""
AWAY_AFTER_S = 150 * ROUND_TRIP_MAX_S
"""Without a key or a movement of the pointer for so long, nobody is at the machine."""
SPEED_MEASURED_S = ROUND_TRIP_MAX_S
"""`thinwire-node doctor` times training for so long."""
EXAMINE_MESSAGE_S = ROUND_TRIP_MAX_S / 2
"""Padding that measures a line doubles until a message takes so long. On 64 kbit/s the first takes two seconds."""
EXAMINE_EVERY_S = 5 * ROUND_TRIP_MAX_S
"""The coordinator measures the line of one network again after this time."""
SERVICE_RESTART_S = 15 * ROUND_TRIP_MAX_S
"""A node that runs as a service and failed starts again after this time."""
SERVICE_STOP_S = 15 * ROUND_TRIP_MAX_S
"""A service manager kills a node that has not left so long after it was told to. A large model takes long to save."""
SERVICE_MANAGER_S = 30 * ROUND_TRIP_MAX_S
"""A command of a service manager may take so long; one that stops a node waits for it."""
GOSSIP_PATIENCE_S = 150 * ROUND_TRIP_MAX_S
"""A step of `Gossip` waits so long at most for a rank that is silent, unless the script says otherwise. A rank whose
process ended is noticed at once. This is for a machine that hangs, and longer than a pause to save a checkpoint."""
EXPORT_LEFT_S = 43_200 * ROUND_TRIP_MAX_S
"""An unfinished export that is older than this is what a killed command has left."""

assert RECEIPT_WAIT_S + ROUND_TRIP_MAX_S < LEAVE_S < LOST_AFTER_S, "a node must have left before it counts as lost"
assert LEAVE_S < SERVICE_STOP_S < SERVICE_MANAGER_S, "a service must leave before it is killed"
assert HEARTBEAT_LEAST_S < HEARTBEAT_S, "the coordinator must accept the nodes' ping interval"
assert LOST_AFTER_S < CALL_S, "a lost link must be noticed before a call times out"
assert STREAM_HEARTBEAT_S < BROWSER_SILENT_S, "a browser must get a message to acknowledge before it counts as gone"
assert DIAL_S < CALL_S, "the way must be found before a call on it times out"
assert min(PART_S, ACCEPT_S) > LOST_AFTER_S, "a lost link must be noticed before a slow one is given up"
assert REFUSAL_PAUSE_S < CALL_S, "a refused node must get the refusal before its call times out"
assert READ_GRACE_S < ROUND_TRIP_MAX_S, "the grace period must not delay the next round"


def probe_every_s(round_s: float) -> float:
    """Time between two clock probes: once a round, between R and one heartbeat. The error grows by at most 2 ms
    meanwhile."""
    return min(max(round_s, ROUND_TRIP_MAX_S), HEARTBEAT_S)


def margin_s(round_s: float) -> float:
    """Time reserved between the end of the upload and the deadline: a twentieth of the round, at most R/8.

    It covers the coordinator's own check of the contribution, and delays that cannot be measured.
    """
    return min(round_s / 20, ROUND_TRIP_MAX_S / 8)


def unmeasured_tail_s(round_s: float) -> float:
    """Estimate of encoding plus upload before either was measured."""
    return round_s / 4


def void_lasts_s(round_s: float) -> float:
    """Minimum time from the opening of a void round to the next round, so that nodes without data cannot make rounds
    spin."""
    return min(round_s, ROUND_TRIP_MAX_S / 4)


def prompt_answer_s(round_s: float) -> float:
    """Time from the opening of a round in which a node may say that it has nothing, without having missed the round.
    Such a node can delay each round by no more."""
    return round_s / 20


def evaluation_answer_s(round_s: float) -> float:
    """Time in which a node answers with the held-out loss of a part: two rounds, at least until its loss is noticed.

    A node measures while it waits, and in the time of a round that it does not need for training.
    """
    return max(2 * round_s, LOST_AFTER_S)


def save_every_s(round_s: float, save_s: float) -> float:
    """Time between two saves of a node's state: once a round, or more if saving would take over 1% of the time.

    save_s: duration of the last save.
    """
    return max(round_s, 100 * save_s)
