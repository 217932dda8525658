"""Finds out whether somebody uses this machine, by input, screen and graphics cards, and whether its line is metered.

Each function asks the system, in up to a few seconds. It returns None where the system does not tell.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path, PurePath

import psutil

from thinwire_proto.limits import DRIVER_ANSWER_S

TERMINALS = ("pts/[0-9]*", "tty[1-9]*")
GNOME = "org.gnome.Mutter.IdleMonitor"
IDLE_MONITOR = ["busctl", "--user", "call", GNOME, "/org/gnome/Mutter/IdleMonitor/Core", GNOME, "GetIdletime"]
NETWORK_MANAGER = "org.freedesktop.NetworkManager"
METERED = ["busctl", "get-property", NETWORK_MANAGER, "/org/freedesktop/NetworkManager", NETWORK_MANAGER, "Metered"]
METERED_VALUES = ("1", "3")  # NMMetered: yes, and a guess that says yes
WINDOWS_COST = (
    "[void][Windows.Networking.Connectivity.NetworkInformation,Windows,ContentType=WindowsRuntime];"
    "[Windows.Networking.Connectivity.NetworkInformation]::GetInternetConnectionProfile().GetConnectionCost()"
    ".NetworkCostType"
)
FILLS_THE_SCREEN = (2, 3, 4)  # QUNS_BUSY, QUNS_RUNNING_D3D_FULL_SCREEN, QUNS_PRESENTATION_MODE
CARD_PERCENT = 10
"""The share of a card that others use at least. A desktop's own drawing stays below it."""
CARD_LOOKS = 4
"""A look takes a second. One alone would let a node rest because a window has moved."""
NODE = ("thinwire-node", "thinwire_node")
"""The beginnings of the names of its program and of its modules."""


def idle_s(devices: Path = Path("/dev")) -> float | None:
    """Seconds since somebody has typed or moved the pointer. devices: the folder of the terminals."""
    if sys.platform == "win32":
        return _idle_of_windows()
    if sys.platform == "darwin":
        found = re.search(r'"HIDIdleTime" = (\d+)', told_by("ioreg", "-c", "IOHIDSystem", "-d", "4") or "")
        return int(found[1]) / 1e9 if found else None
    known = [one for one in (_idle_of_gnome(), _idle_of_x11(), _idle_of_terminals(devices)) if one is not None]
    return min(known, default=None)


def is_screen_full() -> bool | None:
    """Whether a program fills the whole screen, such as a game or a film."""
    if sys.platform == "win32":
        state = ctypes.c_int()
        failed = ctypes.windll.shell32.SHQueryUserNotificationState(ctypes.byref(state))
        return None if failed else state.value in FILLS_THE_SCREEN
    with suppress(Exception):  # of any kind: the server may go away in the middle
        return _is_x11_full()
    return None


def is_card_used() -> bool | None:
    """Whether another program than a node uses an NVIDIA card of this machine."""
    if (said := told_by("nvidia-smi", "pmon", "-c", str(CARD_LOOKS), "-s", "u")) is None:
        return None
    used: dict[str, int] = {}
    for line in said.splitlines():
        cells = line.split()
        if len(cells) > 3 and cells[1].isdigit() and cells[3].isdigit() and not _is_node(int(cells[1])):
            used[cells[0]] = used.get(cells[0], 0) + int(cells[3])
    return any(share >= CARD_PERCENT * CARD_LOOKS for share in used.values())


def is_metered() -> bool | None:
    """Whether the line costs by its bytes."""
    if sys.platform == "win32":
        cost = (told_by("powershell", "-NoProfile", "-Command", WINDOWS_COST) or "").strip()
        return None if cost in ("", "Unknown") else cost != "Unrestricted"
    kind, _, value = (told_by(*METERED) or "").strip().partition(" ")
    return value in METERED_VALUES if kind == "u" and value != "0" else None


def told_by(*command: str) -> str | None:
    """The text that a program of the system prints; None if it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DRIVER_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").replace("\r\n", "\n") if done.returncode == 0 else None


def _is_node(pid: int) -> bool:
    """Whether a process is a node, or not known here. In a container, the driver's numbers are those of the host, and
    the node would rest because of itself."""
    try:
        return any(PurePath(word).name.startswith(NODE) for word in psutil.Process(pid).cmdline())
    except psutil.AccessDenied:  # it belongs to another user
        return False
    except psutil.Error:
        return True


def _idle_of_terminals(devices: Path) -> float | None:
    """Seconds since something was read from a terminal, which `w` shows too. Text that is printed does not count."""
    found: Iterable[Path] = (path for pattern in TERMINALS for path in devices.glob(pattern))
    now, read_at = time.time(), []
    for path in found:
        with suppress(OSError):  # it has been closed
            read_at.append(path.stat().st_atime)
    # a later one is of a clock that was set back since
    return min((now - at for at in read_at if at <= now), default=None)


def _idle_of_gnome() -> float | None:
    kind, _, value = (told_by(*IDLE_MONITOR) or "").strip().partition(" ")
    return int(value) / 1000 if kind == "t" and value.isdigit() else None


def _has_x11_here() -> bool:
    """Whether DISPLAY names a server of this machine. What somebody does at another one (`ssh -X`) does not count."""
    return os.environ.get("DISPLAY", "").startswith((":", "unix:"))


def _idle_of_x11() -> float | None:
    """Seconds since the X server has seen input. Under Wayland it sees that of its own programs alone."""
    with suppress(Exception):  # of any kind: there may be no server, or one without this extension
        from Xlib.display import Display  # noqa: PLC0415 - Linux alone has it

        if _has_x11_here():
            with closing(Display()) as display:
                return float(display.screen().root.screensaver_query_info().idle) / 1000
    return None


def _is_x11_full() -> bool | None:
    from Xlib import Xatom  # noqa: PLC0415 - as above
    from Xlib.display import Display  # noqa: PLC0415

    if not _has_x11_here():
        return None
    with closing(Display()) as display:
        active = display.screen().root.get_full_property(display.intern_atom("_NET_ACTIVE_WINDOW"), Xatom.WINDOW)
        if active is None:
            return None
        window = display.create_resource_object("window", active.value[0])
        state = window.get_full_property(display.intern_atom("_NET_WM_STATE"), Xatom.ATOM)
        return state is not None and display.intern_atom("_NET_WM_STATE_FULLSCREEN") in state.value


def _idle_of_windows() -> float | None:
    if sys.platform != "win32":
        return None

    class LastInput(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("ticks_ms", ctypes.c_uint))

    last = LastInput(ctypes.sizeof(LastInput), 0)
    if not ctypes.windll.user32.GetLastInputInfo(ctypes.byref(last)):
        return None
    ticks_ms: int = ctypes.windll.kernel32.GetTickCount()
    return ((ticks_ms - last.ticks_ms) & 0xFFFFFFFF) / 1000
