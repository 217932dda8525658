"""Runs one attack until SIGTERM, at the lowest priority, and prints what it has sent.

    python -m abuse.attack NAME HOST:PORT TOKEN

TOKEN: of a public invite, in hexadecimal.
"""

from __future__ import annotations

import os
import signal
import sys

from abuse.attacks.table import ATTACKS
from abuse.target import Target

NICEST = 19
ATTACK_LOG = "attacking; sent: "


def main() -> None:
    name, address, token = sys.argv[1:]
    os.nice(NICEST)
    target = Target(address, bytes.fromhex(token), began=lambda: print(ATTACK_LOG, flush=True))
    signal.signal(signal.SIGTERM, lambda number, frame: target.stop.set())
    ATTACKS[name](target)
    print(ATTACK_LOG, ", ".join(f"{count} {what}" for what, count in sorted(target.sent.items())), flush=True)
    os._exit(0)  # threads that still attend would end the interpreter in the middle of gRPC


if __name__ == "__main__":
    main()
