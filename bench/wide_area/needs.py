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
TUN = "/dev/net/tun"


@dataclass(frozen=True)
class EmulationSupport:
    """Result of the check. `missing` says why links cannot be emulated; empty if they can."""

    missing: str
    controller: CpuController | None = None
    """Gives nodes a part of the cores each; without it they share the cores with the coordinator and the line."""


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
    for path, what in ((IP, "the command `ip` (iproute2)"), (TUN, TUN)):
        if not Path(path).exists():
            return EmulationSupport(what)
    name = f"thinwire-{os.getpid()}-look"
    try:
        run(IP, "netns", "add", name)
    except SwarmError as error:
        return EmulationSupport(f"the right to make network namespaces ({error})")
    try:
        run(IP, "-n", name, "tuntap", "add", "mode", "tun", "name", "look")
    except SwarmError as error:
        return EmulationSupport(f"TUN devices ({error})")
    finally:
        subprocess.run([IP, "netns", "del", name], check=False, capture_output=True)
    return EmulationSupport("", cpu_controller())
