"""Reads what torchrun, or another launcher of scripts, tells its processes."""

from __future__ import annotations

import os

from thinwire_proto.errors import ConfigError


def check_alone(what: str) -> None:
    """Raise ConfigError if a launcher has started several processes, though torch.distributed has no process group.

    Each of them would train by itself, and nothing would say so. what: a class of this package, for the message.
    """
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) > 1:
        raise ConfigError(
            f"{what}: {started} processes were started (WORLD_SIZE), but torch.distributed has no process group, so "
            'each would train alone; call torch.distributed.init_process_group("gloo") first'
        )
