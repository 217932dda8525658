"""All attacks by name."""

from __future__ import annotations

from collections.abc import Callable

from abuse.attacks.absent_members import absent_members
from abuse.attacks.bad_enrolments import bad_enrolments
from abuse.attacks.dropped_handshakes import dropped_handshakes
from abuse.attacks.dropped_streams import dropped_streams
from abuse.attacks.long_names import long_names
from abuse.attacks.many_contributions import many_contributions
from abuse.attacks.silent_connections import begun_handshakes, silent_connections
from abuse.attacks.slow_readers import slow_readers
from abuse.attacks.slow_writers import slow_writers
from abuse.attacks.zstd_bomb import zstd_bomb
from abuse.target import Target

ATTACKS: dict[str, Callable[[Target], None]] = {
    "500 connections that send nothing": silent_connections,
    "500 handshakes that stop": begun_handshakes,
    "2,000 handshakes that are dropped": dropped_handshakes,
    "slow readers": slow_readers,
    "slow writers": slow_writers,
    "bad enrolments": bad_enrolments,
    "zstd bombs": zstd_bomb,
    "streams opened and dropped": dropped_streams,
    "a hundred contributions a round": many_contributions,
    "nodes that attend and send nothing": absent_members,
    "names of a megabyte": long_names,
}
