"""What emulating links needs of this machine, found out by trying it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local_swarm.processes import SwarmError

IP = shutil.which("ip") or "/sbin/ip"
TUN_RATE_MBIT_MAX = 100
"""Packets a second are what a line in Python is short of; above this it is not a line any more but a bottleneck."""


@dataclass(frozen=True)
class Machine:
    """What was found. `missing` says why no link can be emulated, and is empty if one can."""

    missing: str
    netem: bool = False
    no_netem_because: str = ""

    def cannot(self, rate_mbit: float) -> str:
        """Why this machine cannot emulate a rate, or nothing."""
        if self.netem or rate_mbit <= TUN_RATE_MBIT_MAX:
            return ""
        return (
            f"left out: {rate_mbit:g} Mbit/s needs tc netem ({self.no_netem_because}); "
            f"the line in Python carries up to {TUN_RATE_MBIT_MAX} Mbit/s"
        )


def run(*command: str) -> str:
    """Run a command; its output. Raises SwarmError with what it complained of."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SwarmError(f"there is no command {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise SwarmError(f"{' '.join(command)}: {error.stderr.strip()}") from None


def look_at_machine() -> Machine:
    if sys.platform != "linux":
        return Machine(f"Linux with network namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        return Machine("root, for network namespaces")
    if not Path(IP).exists():
        return Machine("the command `ip` (iproute2)")
    name = f"thinwire-{os.getpid()}-look"
    try:
        run(IP, "netns", "add", name)
    except SwarmError as error:
        return Machine(f"the right to make network namespaces ({error})")
    try:
        return _look_inside(name)
    finally:
        subprocess.run([IP, "netns", "del", name], check=False, capture_output=True)


def _look_inside(name: str) -> Machine:
    try:
        run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms", "rate", "1mbit")
        return Machine("", netem=True)
    except SwarmError as error:
        because = str(error).rpartition(": ")[2]
    try:
        run(IP, "-n", name, "tuntap", "add", "mode", "tun", "name", "look")
    except SwarmError as error:
        return Machine(f"tc netem ({because}), or TUN devices ({error})")
    if not Path("/dev/net/tun").exists():
        return Machine(f"tc netem ({because}), or /dev/net/tun")
    return Machine("", netem=False, no_netem_because=because)
