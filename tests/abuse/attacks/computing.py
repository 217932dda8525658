"""No attack: computes on the attackers' cores, so that quiet windows find the machine as busy as attacked ones do."""

from __future__ import annotations

import hashlib

from abuse.target import Target

BLOCK = bytes(1 << 20)


def computing(target: Target) -> None:
    while not target.stop.is_set():
        hashlib.sha256(BLOCK)
        target.count("blocks")
