"""Observes the other programs of this machine, and ranks this one among them. Uses psutil."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from thinwire_node.limits import presence
from thinwire_node.limits.limits import Limits
from thinwire_node.limits.resting import Surroundings
from thinwire_proto.limits import AWAY_AFTER_S, DRIVER_ANSWER_S

log = logging.getLogger("thinwire.node")

SEEN_OVER_S = 10.0
"""The use of the processor is a mean over this time."""
SEEN_EVERY_S = 2.0
ASKED_EVERY_S = 5.0
METERED_EVERY_S = 60.0
NICE = {"idle": 19, "low": 10, "normal": 0}
SUPPLIES = Path("/sys/class/power_supply")
"""psutil takes the battery of a wireless mouse for the machine's, which is never plugged in then."""
WORD_BYTES_MAX = 64
AUTOGROUP = Path("/proc/self/autogroup")
AUTOGROUP_EVERY_S = 0.1
PUT_BACK_TRIES = 5


Answer = TypeVar("Answer")


class Question(Generic[Answer]):
    """A question that the system is asked again and again, in a thread, because it may take its time to answer."""

    def __init__(self, words: str, ask: Callable[[], Answer | None], every_s: float) -> None:
        self._words, self._ask, self._every_s = words, ask, every_s
        self._next_s = -math.inf
        self._is_asked = False
        self._has_told = False
        self._answer: Answer | None = None
        self._answered_s = -math.inf

    def newest(self, now: float) -> Answer | None:
        """The newest answer; None: there is none yet, it is overdue, or the system does not tell."""
        if now >= self._next_s and not self._is_asked:
            self._next_s, self._is_asked = now + self._every_s, True
            threading.Thread(target=self._run, args=(now,), name="question", daemon=True).start()
        return self._answer if now <= self._answered_s + self._every_s + DRIVER_ANSWER_S else None

    def _run(self, now: float) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:  # noqa: BLE001 - what a system does not tell is no reason to rest for ever
            log.debug("no answer: %r", error)
            self._answer = None
        self._answered_s = now
        if self._answer is None and not self._has_told:
            log.info("%s", f"this system does not tell {self._words}, so the node does not rest because of it")
        self._has_told = True
        self._is_asked = False


class MachineLoad:
    """The load of this machine by others."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._idle_s = Question("whether somebody is at it", presence.idle_s, ASKED_EVERY_S)
        self._screen = Question("whether a program fills its screen", presence.is_screen_full, ASKED_EVERY_S)
        self._card = Question("which programs use an NVIDIA card", presence.is_card_used, ASKED_EVERY_S)
        self._metered = Question("whether its line is metered", presence.is_metered, METERED_EVERY_S)
        self._seen: deque[tuple[float, float]] = deque()  # time, seconds of others
        self._on_battery = False

    def surroundings(self, at_s: float, limits: Limits) -> Surroundings:
        """The surroundings, as far as the limits ask. at_s: the time of day, in seconds since the epoch."""
        now = time.monotonic()
        if not self._seen or now >= self._seen[-1][0] + SEEN_EVERY_S:
            if limits.on_battery == "pause":
                self._on_battery = on_battery()
            if limits.while_busy == "pause":
                self._seen.append((now, self._others_s()))
            else:
                self._seen.clear()
        while len(self._seen) > 2 and now - self._seen[1][0] >= SEEN_OVER_S:
            self._seen.popleft()
        around = Surroundings(at_s, self._on_battery, self._others_share())
        if limits.on_metered == "pause":
            around = replace(around, is_metered=bool(self._metered.newest(now)))
        if limits.while_busy == "pause":
            idle_s = self._idle_s.newest(now)
            around = replace(
                around,
                is_somebody_here=idle_s is not None and idle_s < AWAY_AFTER_S,
                is_screen_full=bool(self._screen.newest(now)),
                is_card_used=bool(self._card.newest(now)),
            )
        return around

    def _others_share(self) -> float | None:
        """None until the whole time was seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < SEEN_OVER_S:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) / (psutil.cpu_count() or 1)

    def _others_s(self) -> float:
        """Seconds of processor that others have used. Linux counts time at a low priority apart, and it is left out,
        because it gives way as this node does. macOS has the field, and counts that time as any other."""
        whole, own = psutil.cpu_times(), self._own.cpu_times()
        own_user_s = 0.0 if sys.platform == "linux" and self._own.nice() > 0 else own.user
        return float(whole.user + whole.system - own_user_s - own.system)


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Whether the machine has a battery and is not plugged in. supplies: the folder where Linux describes them."""
    if sys.platform != "linux":
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return battery is not None and battery.power_plugged is False
    found = [supply for supply in _entries(supplies) if _word(supply / "scope") != "Device"]
    if any(_word(supply / "type") != "Battery" and _word(supply / "online") == "1" for supply in found):
        return False
    return any(_word(supply / "type") == "Battery" and _word(supply / "status") == "Discharging" for supply in found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # a machine without power supplies, or a container that does not see them
        return []


def _word(file: Path) -> str:
    """The contents of a file of the system; empty if it has none. Drivers differ in what they have, and may fail."""
    try:
        return file.read_bytes()[:WORD_BYTES_MAX].decode("ascii", "replace").strip()
    except OSError:
        return ""


def set_priority(priority: str) -> None:
    """Rank this process, with all its threads, among the programs of this machine: `idle`, `low` or `normal`.

    A system may refuse to raise it again."""
    process = psutil.Process()
    if sys.platform == "win32":
        classes = {
            "idle": psutil.IDLE_PRIORITY_CLASS,
            "low": psutil.BELOW_NORMAL_PRIORITY_CLASS,
            "normal": psutil.NORMAL_PRIORITY_CLASS,
        }
        process.nice(classes[priority])
        return
    try:
        _nice(NICE[priority])
    except (PermissionError, psutil.AccessDenied):
        log.warning(
            "%s",
            f"the system does not let the node rise to priority {priority}; start it again, from where programs have "
            "that priority",
        )
        return
    if hasattr(process, "ionice"):
        with contextlib.suppress(psutil.Error, OSError):
            process.ionice(psutil.IOPRIO_CLASS_IDLE if priority == "idle" else psutil.IOPRIO_CLASS_NONE)


def _nice(value: int) -> None:
    """On Linux, each thread has a value of its own."""
    if sys.platform != "linux":
        psutil.Process().nice(value)
        return
    for thread in psutil.Process().threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, thread.id, value)
    _autogroup.rank(value)


class _Autogroup:
    """Ranks the group of a session's processes on Linux, within which alone `nice` ranks them. The group outlives this
    program, as a terminal does, so its rank is put back at the exit."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._ours = 0

    def rank(self, value: int) -> None:
        try:
            if (now := _group_nice()) == value:
                return  # another node of this terminal may have done it, which puts it back
            AUTOGROUP.write_text(str(value))
        except (OSError, ValueError, IndexError):  # the system ranks no groups, or not so soon again
            return
        if self._before is None:
            self._before = now
            atexit.register(self._put_back)
        self._ours = value

    def _put_back(self) -> None:
        for _ in range(PUT_BACK_TRIES):
            try:
                if _group_nice() == self._ours:
                    AUTOGROUP.write_text(str(self._before))
                return
            except BlockingIOError:  # users other than root may change one group in a tenth of a second, all together
                time.sleep(AUTOGROUP_EVERY_S)
            except (OSError, ValueError, IndexError):
                return


def _group_nice() -> int:
    """The nice value of this session's group, of a text such as `/autogroup-73 nice 0`."""
    return int(AUTOGROUP.read_text().split()[-1])


_autogroup = _Autogroup()
