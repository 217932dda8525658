"""Signals that end a node, in a real process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from thinwire_node.runtime import run

async def main(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()

run(main)
os.kill(os.getpid(), signal.SIGTERM)
print("ended")
"""


def test_a_second_signal_after_the_node_has_left_is_ignored() -> None:
    """The interpreter still runs its exit handlers then, and the event loop is closed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
