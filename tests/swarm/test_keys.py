"""The keys of a real node's live view, on a real terminal whose shell goes on after the node."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local_swarm.processes import BIN
from support.real import LONG_MS, RealSwarm, run_text, until
from support.screen import PATIENCE_S, Screen
from thinwire_node.cli.keyboard import LEGEND
from thinwire_node.limits.resting import Orders, OrdersFile

SHELL = '"$@" < "$input"; echo "ended with $?"; exec sleep 1000'
"""This program stands for a shell: it has the terminal before and after the node."""
CANONICAL = termios.ICANON | termios.ECHO


class Shell:
    """A node that a shell has started on a terminal."""

    def __init__(self, swarm: RealSwarm, screen: Screen, input_: str = "/dev/tty") -> None:
        self.screen, self.folder = screen, swarm.folder / "keyed"
        self.before = termios.tcgetattr(screen.end)
        node = [str(BIN / "thinwire-node"), "start", swarm.invitation, "--state-dir", str(self.folder)]
        shell = ["env", f"input={input_}", "sh", "-c", SHELL, "sh", *node, "--threads", "1"]
        self.popen = screen.start(*shell)

    @property
    def mode(self) -> list[Any]:
        return termios.tcgetattr(self.screen.end)

    @property
    def orders(self) -> Orders:
        return OrdersFile(self.folder / "orders.json").read()

    def shows(self, text: str) -> None:
        self.screen.shows(lambda lines: text in "\n".join(lines))

    def node(self) -> int:
        """The process of the node."""
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return int(children[0])


@pytest.fixture
def screen() -> Iterator[Screen]:
    found = Screen(100, 40)
    yield found
    found.close()


@pytest.fixture
def shell(swarm: RealSwarm, screen: Screen) -> Iterator[Shell]:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS))
    found = Shell(swarm, screen)
    yield found
    _end(found)


def _end(shell: Shell) -> None:
    os.killpg(shell.popen.pid, signal.SIGKILL)
    shell.popen.wait()


def test_keys_give_the_orders_of_the_commands(swarm: RealSwarm, shell: Shell) -> None:
    until(lambda: swarm.status().nodes and swarm.status().nodes[0].counted > 2, "the node is counted")
    shell.shows(LEGEND)
    assert shell.screen.lines()[-1] == LEGEND
    assert not shell.mode[3] & CANONICAL
    for key in (b"\x1bOp", b"x", b"p"):  # the first one is a key with several bytes
        shell.screen.type(key)
        until(lambda: not select.select([shell.screen.end], [], [], 0)[0], "the key is read")
    shell.shows(" · paused")
    assert shell.orders == Orders(paused=True)
    shell.screen.type(b"r")
    shell.shows("the pause is over")
    assert shell.orders == Orders()
    counted = swarm.status().nodes[0].counted
    until(lambda: swarm.status().nodes[0].counted > counted, "the node is counted again")
    shell.screen.type(b"s")
    shell.shows("ended with 0")
    assert LEGEND not in "\n".join(shell.screen.lines())
    assert "the node stops after its round" in "\n".join(shell.screen.lines())
    assert shell.mode == shell.before


def test_q_leaves_while_the_node_rests(shell: Shell) -> None:
    shell.shows(LEGEND)
    shell.screen.type(b"p")
    shell.shows(" · paused")
    shell.screen.type(b"q")
    shell.shows("ended with 0")
    assert shell.orders.paused  # for the next start
    assert shell.mode == shell.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_terminal_has_its_mode_again_after_every_end(shell: Shell, number: signal.Signals) -> None:
    shell.shows(LEGEND)
    os.kill(shell.node(), number)
    shell.shows("ended with")
    until(lambda: shell.mode == shell.before, "the mode is the shell's")


def test_a_node_without_a_keyboard_changes_nothing(swarm: RealSwarm, screen: Screen) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS))
    shell = Shell(swarm, screen, "/dev/null")
    try:
        until(lambda: swarm.status().nodes and swarm.status().nodes[0].counted > 2, "the node is counted")
        shell.shows("thinwire · ")
        screen.type(b"q")
        counted = swarm.status().nodes[0].counted
        until(lambda: swarm.status().nodes[0].counted > counted, "the node goes on")
        assert LEGEND not in "\n".join(screen.lines())
        assert shell.mode == shell.before
    finally:
        _end(shell)


def _children(shell: subprocess.Popen[bytes]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="only a shell with job control has a background")
def test_a_node_in_the_background_leaves_the_terminal_to_others(swarm: RealSwarm, screen: Screen) -> None:
    """A shell with job control puts it there; the system stops a program in the background that reads."""
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS))
    before = termios.tcgetattr(screen.end)
    node = f"{BIN / 'thinwire-node'} start {swarm.invitation} --state-dir {swarm.folder / 'keyed'} --threads 1"
    shell = screen.start("bash", "--norc", "-i")
    try:
        screen.type(f"{node} &\n".encode())
        until(lambda: swarm.status().nodes and swarm.status().nodes[0].counted > 2, "the node is counted")
        typed = swarm.folder / "q"  # one of its letters would be an order
        screen.type(f"touch {typed}\n".encode())
        until(typed.exists, "the shell has what was typed")
        assert LEGEND not in "\n".join(screen.lines())
        screen.type(b"fg\n")
        screen.shows(lambda lines: LEGEND in "\n".join(lines))
        screen.type(b"q")
        screen.shows(lambda lines: "· left" in "\n".join(lines))
        until(lambda: not _children(shell), "the node has ended")  # until then it reads what is typed
        screen.type(b"exit\n")
        assert shell.wait(PATIENCE_S) == 0
        assert termios.tcgetattr(screen.end) == before
    finally:
        if shell.poll() is None:
            for pid in _children(shell):
                os.kill(pid, signal.SIGKILL)
            shell.kill()
        shell.wait()
