"""The relay of a node's limits, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from pathlib import Path

import pytest

from thinwire_node.limits.limits import check
from thinwire_node.limits.month import MonthlyBudget
from thinwire_node.limits.throttle import Throttle

RATES = (2e3, 10e3, 100e3, 1e6)
BUFFERED_S_MAX = {2e3: 5.0, 10e3: 1.0, 100e3: 1.0, 1e6: 1.0}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems size their buffers in their own ways")
@pytest.mark.parametrize("rate", RATES)
async def test_what_comes_at_once_is_little_of_a_minute(tmp_path: Path, rate: float) -> None:
    """A sender that is faster than the cap fills the receive buffer before the relay can hold it back."""
    throttle = Throttle(
        check({"max_download": f"{rate / 1e3:g}kB/s"}), MonthlyBudget(tmp_path / "month.json", None, 1, 0.0), time.time
    )
    with socket.create_server(("127.0.0.1", 0)) as server, throttle.make_socket(socket.AF_INET) as far:
        far.connect(server.getsockname())
        sender, _ = server.accept()
        with sender:
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.send(bytes(1448))
            at_once = len(far.recv(1 << 20, socket.MSG_PEEK))
    assert 0 < at_once <= BUFFERED_S_MAX[rate] * rate
