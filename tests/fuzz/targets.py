"""All targets of one process."""

from __future__ import annotations

from functools import cache

from fuzz.beat_targets import beat_targets
from fuzz.file_targets import file_targets, scratch_folder
from fuzz.gossip_targets import gossip_targets
from fuzz.identity_targets import identity_targets
from fuzz.message_targets import message_targets
from fuzz.payload_targets import payload_targets
from fuzz.peer_targets import peer_targets
from fuzz.target import Target


@cache
def all_targets() -> tuple[Target, ...]:
    return (
        *payload_targets(),
        *gossip_targets(),
        *beat_targets(),
        *message_targets(),
        *peer_targets(),
        *file_targets(),
        *identity_targets(scratch_folder()),
    )
