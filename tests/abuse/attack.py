"""Runs one attack until SIGTERM, at the lowest priority, and prints what it has sent.

    python -m abuse.attack NAME HOST:PORT TOKEN [PAGE ...]

TOKEN: of a public invite, in hexadecimal. PAGE: HOST:PORT of the coordinator's page.
"""

from __future__ import annotations

import os
import signal
import sys

from abuse.attacks import ATTACKS, computing
from abuse.target import Target

NICEST = 19
NOTHING = "nothing"
"""The name of no attack: see `computing`."""
ATTACK_LOG = "attacking; sent: "


def main() -> None:
    name, address, token, *pages = sys.argv[1:]
    os.nice(NICEST)
    target = Target(address, bytes.fromhex(token), tuple(pages), began=lambda: print(ATTACK_LOG, flush=True))
    signal.signal(signal.SIGTERM, lambda number, frame: target.stop.set())
    (computing if name == NOTHING else ATTACKS[name])(target)
    print(ATTACK_LOG, ", ".join(f"{count} {what}" for what, count in sorted(target.sent.items())), flush=True)
    os._exit(0)  # threads that still attend would end the interpreter in the middle of gRPC


if __name__ == "__main__":
    main()
