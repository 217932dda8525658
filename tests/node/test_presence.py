"""A node finds out who uses its machine: on a real X server, and by what the programs of a system print."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from Xlib import Xatom
from Xlib.display import Display

from support.real import until
from thinwire_node.limits import presence
from thinwire_node.limits.limits import check
from thinwire_node.limits.machine_load import MachineLoad, Question
from thinwire_node.limits.resting import Surroundings

NEEDS_X = [name for name in ("Xvfb", "xdotool") if shutil.which(name) is None]
on_x11 = pytest.mark.skipif(bool(NEEDS_X), reason=f"apt-get install -y {' '.join(NEEDS_X).lower()}")
PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command 
# Idx           #    C/G      %      %      %      %      %      %    name 
    0       1523     G      2      1      -      -      -      -    Xorg           
    0    {pid:>7}     C     {sm}      7      -      -      -      -    python         
    1          -     -      -      -      -      -      -      -    -              
"""  # noqa: W291 - as nvidia-smi prints it
TCP = ("-listen", "tcp", "-ac")
Stand = Callable[[str, str], None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Puts a program that prints a text in the place of one of the system. Only those are found then."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)

    def stand(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!{sys.executable} -S\nprint({text!r}, end='')\n")
        (tmp_path / name).chmod(0o755)

    return stand


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new X server of its own."""
    read, write = os.pipe()
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "640x480x24", "-noreset", *TCP], pass_fds=[write]
    ) as server:
        name = f":{os.read(read, 16).decode().strip()}"
        monkeypatch.setenv("DISPLAY", name)
        yield name
        server.terminate()


@on_x11
@pytest.mark.usefixtures("display")
def test_a_key_on_an_x_server_is_input() -> None:
    until(lambda: (presence._idle_of_x11() or 0) >= 1, "nobody has typed for a second")
    idle = presence._idle_of_x11()
    assert idle is not None
    subprocess.run(["xdotool", "key", "a"], check=True)
    found = presence._idle_of_x11()
    assert found is not None
    assert found < idle


@on_x11
@pytest.mark.usefixtures("display")
def test_a_window_may_fill_the_screen_of_an_x_server() -> None:
    assert presence.is_screen_full() is None  # there is no window manager to say
    with closing(Display()) as display:
        root = display.screen().root
        window = root.create_window(0, 0, 640, 480, 0, display.screen().root_depth)
        root.change_property(display.intern_atom("_NET_ACTIVE_WINDOW"), Xatom.WINDOW, 32, [window.id])
        display.sync()
        assert presence.is_screen_full() is False
        full = display.intern_atom("_NET_WM_STATE_FULLSCREEN")
        window.change_property(display.intern_atom("_NET_WM_STATE"), Xatom.ATOM, 32, [full])
        display.sync()
        assert presence.is_screen_full() is True


def test_typing_in_a_terminal_is_input_and_what_it_shows_is_not(tmp_path: Path) -> None:
    assert presence._idle_of_terminals(tmp_path) is None
    terminal = tmp_path / "pts" / "0"
    terminal.parent.mkdir()
    terminal.touch()
    now = time.time()
    os.utime(terminal, (now - 400, now))
    found = presence._idle_of_terminals(tmp_path)
    assert found == pytest.approx(400, abs=60)
    os.utime(terminal, (now, now - 400))
    found = presence._idle_of_terminals(tmp_path)
    assert found is not None
    assert found < 60


def test_a_terminal_that_has_closed_or_was_read_in_the_future_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "0").symlink_to("closed")
    terminal = tmp_path / "pts" / "1"
    terminal.touch()
    os.utime(terminal, (time.time() + 3600, 0))  # the clock was set back
    assert presence._idle_of_terminals(tmp_path) is None


@on_x11
def test_an_x_server_elsewhere_is_not_asked(display: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", f"127.0.0.1{display}")
    assert presence._idle_of_x11() is None


@pytest.mark.parametrize(
    ("text", "expected"), [("t 123456\n", 123.456), ("", None), ("Call failed: no such name\n", None), ("t x", None)]
)
def test_gnome_tells_since_when_nobody_has_typed(stand_in: Stand, text: str, expected: float | None) -> None:
    stand_in("busctl", text)
    assert presence._idle_of_gnome() == expected


def test_macos_tells_since_when_nobody_has_typed(stand_in: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert presence.idle_s() is None
    stand_in("ioreg", '  | |   "HIDScrollAccelerationType" = "HID"\n  | |   "HIDIdleTime" = 2500000000\n')
    assert presence.idle_s() == 2.5


@pytest.mark.parametrize(
    ("looks", "expected"), [((45,) * 4, True), ((5,) * 4, False), (("-",) * 4, False), ((30, "-", "-", "-"), False)]
)
def test_another_program_uses_the_card(stand_in: Stand, looks: tuple[object, ...], expected: bool) -> None:
    assert presence.is_card_used() is None
    stand_in("nvidia-smi", "".join(PMON.format(pid=os.getpid(), sm=str(look).rjust(3)) for look in looks))
    assert presence.is_card_used() is expected


def test_a_process_that_is_not_known_here_may_be_the_node(stand_in: Stand) -> None:
    stand_in("nvidia-smi", PMON.format(pid=1 << 22, sm=" 90"))
    assert presence.is_card_used() is False


@pytest.mark.parametrize(
    ("word", "is_node"),
    [
        ("/home/me/.local/bin/thinwire-node", True),
        ("thinwire_node.cli.follower", True),
        ("/home/me/thinwire/train.py", False),
    ],
)
def test_a_node_on_the_card_is_no_other_program(stand_in: Stand, word: str, is_node: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", word], stdin=subprocess.PIPE) as process:
        until(lambda: word in psutil.Process(process.pid).cmdline(), "it has begun")
        stand_in("nvidia-smi", PMON.format(pid=process.pid, sm=" 90"))
        assert presence.is_card_used() is not is_node
        process.kill()


@pytest.mark.parametrize(
    ("text", "expected"), [("u 1\n", True), ("u 3\n", True), ("u 2\n", False), ("u 4\n", False), ("u 0\n", None)]
)
def test_network_manager_tells_of_a_metered_line(stand_in: Stand, text: str, expected: bool | None) -> None:
    stand_in("busctl", text)
    assert presence.is_metered() is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("Fixed\r\n", True), ("Variable", True), ("Unrestricted\r\n", False), ("Unknown", None)]
)
def test_windows_tells_of_a_metered_line(
    stand_in: Stand, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool | None
) -> None:
    stand_in("powershell", text)
    monkeypatch.setattr(sys, "platform", "win32")
    assert presence.is_metered() is expected


def test_a_program_that_hangs_or_fails_tells_nothing(
    stand_in: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "DRIVER_ANSWER_S", 0.2)
    for text in ("import time; time.sleep(60)", "raise SystemExit(1)"):
        (tmp_path / "busctl").write_text(f"#!{sys.executable} -S\n{text}\n")
        (tmp_path / "busctl").chmod(0o755)
        assert presence.is_metered() is None


def test_a_question_is_asked_beside_all_else_and_says_once_that_there_is_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "thinwire.node")
    answers = [None, None, 7]
    question = Question("the hour", lambda: answers.pop(0), every_s=5)
    assert question.newest(0.0) is None
    until(lambda: len(answers) == 2 and not question._is_asked, "the first answer")
    assert question.newest(4.0) is None
    assert len(answers) == 2
    for now in (5.0, 10.0):
        question.newest(now)
        until(lambda: not question._is_asked, "the next answer")
    assert question.newest(11.0) == 7
    told = "this system does not tell the hour, so the node does not rest because of it"
    assert caplog.messages == [told]


def test_an_answer_that_is_overdue_or_fails_is_none() -> None:
    goes_on = threading.Semaphore(1)

    def ask() -> int:
        goes_on.acquire()
        return 7

    question = Question("the hour", ask, every_s=5)
    question.newest(0.0)
    until(lambda: question.newest(0.0) == 7, "the answer")
    assert question.newest(5.0) == 7  # the next one hangs
    assert question.newest(16.0) is None
    goes_on.release()

    fails = Question("the hour", lambda: 1 // 0, every_s=5)
    for now in (0.0, 5.0):
        assert fails.newest(now) is None
        assert fails._next_s == now + 5  # it is asked again
        until(lambda: not fails._is_asked, "the failure")


def test_nothing_is_asked_without_a_limit(stand_in: Stand, tmp_path: Path) -> None:
    for name in ("busctl", "nvidia-smi"):
        (tmp_path / name).write_text(f"#!/bin/sh\n: > {tmp_path}/{name}.asked\n")
        (tmp_path / name).chmod(0o755)
    load = MachineLoad()
    assert load.surroundings(0.0, check({})) == Surroundings(0.0)
    assert not [*tmp_path.glob("*.asked")]
    load.surroundings(0.0, check({"on_metered": "pause", "while_busy": "pause"}))
    until(lambda: len([*tmp_path.glob("*.asked")]) == 2, "both are asked")
