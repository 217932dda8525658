"""The bound that the system puts on the memory of this process, as a container or a service of systemd has one.

A container sees its bound at the root of /sys/fs/cgroup. A service sees the whole tree of control groups, and the bound
(MemoryMax=) is at its own place in it, or at one above. So all groups from its own to the root count.
"""

from __future__ import annotations

from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
SECOND_VERSION = "memory.max"
FIRST_VERSION = "memory.limit_in_bytes"


def memory_limit_bytes(groups: Path = GROUPS, root: Path = ROOT) -> int | None:
    """The smallest bound of this process's control groups; None if there is none, or if the system has no groups."""
    places = {root / SECOND_VERSION, root / "memory" / FIRST_VERSION}
    for line in _text_of(groups).splitlines():  # "0::PATH", or "NUMBER:CONTROLLERS:PATH" of the first version
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            places |= _upwards(root, path, SECOND_VERSION)
        elif "memory" in controllers.split(","):
            places |= _upwards(root / "memory", path, FIRST_VERSION)
    found = [int(text) for place in places if (text := _text_of(place).strip()).isdecimal()]
    return min(found, default=None)


def _upwards(top: Path, path: str, name: str) -> set[Path]:
    """The files of this name in a group and in all groups above it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return {top.joinpath(*parts[:depth]) / name for depth in range(len(parts) + 1)}


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
