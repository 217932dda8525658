"""Carries packets between hosts over a `StarTopology`.

The process runs in the hub's namespace and creates one TUN device for each host. It then prints `ready`, and its parent
moves each device into the namespace of its host. A TUN device without offloads (IFF_VNET_HDR, TUNSETOFFLOAD) receives
packets as on a wire: no larger than the MTU, with complete checksums.

On SIGTERM the process prints its counts as JSON and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import time
from dataclasses import asdict
from types import FrameType

from bench.wide_area.line import MTU_BYTES, LineQuality, StarTopology
from bench.wide_area.needs import TUN

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
READS_MAX = 64
"""Packets read from one device before the other devices have their turn."""
NICENESS = -10
"""The emulation runs ahead of the training, which uses all cores; a late packet would change the link."""
IDLE_S = 1.0


def open_tun(name: str) -> int:
    """Create a TUN device in the namespace of this process. It disappears when the descriptor is closed."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class Carrier:
    """Moves packets between the devices and the star, and records how late each one is."""

    def __init__(self, star: StarTopology, descriptors: list[int]) -> None:
        self._star = star
        self._descriptors = descriptors
        self._packets = 0
        self._oversize = 0
        self._late_s = 0.0
        self._late_max_s = 0.0

    def run(self) -> None:
        """Carry packets until an exception ends the loop."""
        host_of = {descriptor: host for host, descriptor in enumerate(self._descriptors)}
        while True:
            next_s = self._star.next_s
            wait_s = IDLE_S if next_s is None else max(0.0, next_s - time.monotonic())
            readable, _, _ = select.select(self._descriptors, [], [], min(wait_s, IDLE_S))
            for descriptor in readable:
                self._read_packets(host_of[descriptor], descriptor)
            self._write_packets()

    def _read_packets(self, host: int, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS_MAX):
                packet = os.read(descriptor, 65536)
                self._oversize += len(packet) > MTU_BYTES
                self._star.offer(host, packet, time.monotonic())

    def _write_packets(self) -> None:
        now_s = time.monotonic()
        for arrival_s, host, packet in self._star.due(now_s):
            try:
                os.write(self._descriptors[host], packet)
            except OSError as error:
                if error.errno != errno.EIO:  # the device is down
                    raise
            late_s = now_s - arrival_s
            self._packets += 1
            self._late_s += late_s
            self._late_max_s = max(self._late_max_s, late_s)

    def report(self) -> dict[str, object]:
        return {
            "packets": self._packets,
            "oversize": self._oversize,
            "late_mean_ms": 1000 * self._late_s / max(1, self._packets),
            "late_max_ms": 1000 * self._late_max_s,
            "cpu_s": time.process_time(),
            "up": [asdict(line.tally) for line in self._star.up],
            "down": [asdict(line.tally) for line in self._star.down],
        }


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.tun", description=__doc__)
    parser.add_argument("--up", required=True, help="quality of each host's line up, as a JSON list")
    parser.add_argument("--down", required=True, help="of its line down")
    parser.add_argument("--devices", nargs="+", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    os.nice(NICENESS)
    up, down = ([LineQuality(**one) for one in json.loads(text)] for text in (arguments.up, arguments.down))
    star = StarTopology(up, down, arguments.seed)
    carrier = Carrier(star, [open_tun(device) for device in arguments.devices])
    print("ready", flush=True)
    try:
        carrier.run()
    except KeyboardInterrupt:
        print(json.dumps(carrier.report()), flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
