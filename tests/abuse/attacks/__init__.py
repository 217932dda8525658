"""The attacks by name, each a function that goes on until its target's `stop` is set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from abuse.attacks.members import absent_members, many_contributions, slow_readers, slow_writers, zstd_bomb
from abuse.attacks.strangers import (
    bad_enrolments,
    begun_handshakes,
    dropped_handshakes,
    dropped_streams,
    long_names,
    silent_connections,
)
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
BLOCK = bytes(1 << 20)


def computing(target: Target) -> None:
    """No attack: computes on the attackers' cores, so that quiet windows find the machine as busy as attacked ones."""
    while not target.stop.is_set():
        hashlib.sha256(BLOCK)
        target.count("blocks")
