"""Finds out, by trying, whether this machine can emulate links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.wide_area.cores import CpuController, cpu_controller
from deploy.local_swarm.processes import SwarmError

IP = shutil.which("ip") or "/sbin/ip"
TUN_RATE_MBIT_MAX = 100
"""The line in Python is limited by packets a second; above this rate it would itself be the bottleneck."""


@dataclass(frozen=True)
class EmulationSupport:
    """Result of the check. `missing` says why links cannot be emulated; empty if they can."""

    missing: str
    netem: bool = False
    no_netem_because: str = ""
    controller: CpuController | None = None
    """Gives nodes a part of the cores each; without it they share the cores with the coordinator and the line."""

    def cannot(self, rate_mbit: float) -> str:
        """The reason why this machine cannot emulate a rate; empty if it can."""
        if self.netem or rate_mbit <= TUN_RATE_MBIT_MAX:
            return ""
        return (
            f"skipped: {rate_mbit:g} Mbit/s needs tc netem ({self.no_netem_because}); "
            f"the line in Python carries up to {TUN_RATE_MBIT_MAX} Mbit/s"
        )


def run(*command: str) -> str:
    """Run a command and return its output. Raises SwarmError with its error message."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SwarmError(f"there is no command {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise SwarmError(f"{' '.join(command)}: {error.stderr.strip()}") from None


def check_emulation() -> EmulationSupport:
    if sys.platform != "linux":
        return EmulationSupport(f"Linux with network namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        return EmulationSupport("root, for network namespaces")
    if not Path(IP).exists():
        return EmulationSupport("the command `ip` (iproute2)")
    name = f"thinwire-{os.getpid()}-look"
    try:
        run(IP, "netns", "add", name)
    except SwarmError as error:
        return EmulationSupport(f"the right to make network namespaces ({error})")
    try:
        return _look_inside(name)
    finally:
        subprocess.run([IP, "netns", "del", name], check=False, capture_output=True)


def _look_inside(name: str) -> EmulationSupport:
    try:
        run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms", "rate", "1mbit")
        return EmulationSupport("", netem=True, controller=cpu_controller())
    except SwarmError as error:
        because = str(error).rpartition(": ")[2]
    try:
        run(IP, "-n", name, "tuntap", "add", "mode", "tun", "name", "look")
    except SwarmError as error:
        return EmulationSupport(f"tc netem ({because}), or TUN devices ({error})")
    if not Path("/dev/net/tun").exists():
        return EmulationSupport(f"tc netem ({because}), or /dev/net/tun")
    return EmulationSupport("", netem=False, no_netem_because=because, controller=cpu_controller())
